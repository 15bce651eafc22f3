terraform {
  required_providers {
    local = {
      source  = "hashicorp/local"
      version = ">= 1.4.0"
    }
  }
}

variable "directory" {
  type        = string
  description = "Where the page is written, on the machine that Terrace runs on."
}

variable "endpoint" {
  type = string
}

variable "host" {
  type = string
}

resource "local_file" "page" {
  filename = "${var.directory}/handbook.md"
  content  = <<-EOT
    # Production

    The cluster answers at ${var.endpoint}, the database at ${var.host}.
  EOT
}

output "page" {
  value = local_file.page.filename
}
