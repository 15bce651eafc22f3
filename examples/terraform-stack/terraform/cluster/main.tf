# The object's spec.values arrive in this variable.
variable "values" {
  type = object({
    network_id = string
    cidr       = string
  })
}

module "name" {
  source = "../modules/name"
  layer  = "cluster"
}

locals {
  node_count = 3
}

resource "terraform_data" "cluster" {
  input = {
    name    = module.name.name
    network = var.values.network_id
  }
}

resource "terraform_data" "nodes" {
  input = {
    cluster = terraform_data.cluster.id
    count   = local.node_count
  }
}

output "cluster_id" {
  value = terraform_data.cluster.id
}

output "endpoint" {
  value = "https://${cidrhost(var.values.cidr, 10)}:6443"
}
