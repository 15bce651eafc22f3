# How things are named, for every unit that asks.

variable "layer" {
  type = string
}

variable "environment" {
  type    = string
  default = "production"
}

output "name" {
  value = "${var.environment}-${var.layer}"
}
