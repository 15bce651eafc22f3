variable "cluster_id" {
  type = string
}

variable "size_gb" {
  type = number
}

variable "password" {
  type      = string
  sensitive = true
}

resource "terraform_data" "database" {
  input = {
    cluster  = var.cluster_id
    size_gb  = var.size_gb
    password = var.password
  }
}

output "host" {
  value = "db.${substr(var.cluster_id, 0, 8)}.internal"
}

output "connection" {
  value     = "postgres://app:${var.password}@db.${substr(var.cluster_id, 0, 8)}.internal/app"
  sensitive = true
}
