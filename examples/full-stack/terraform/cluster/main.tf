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

resource "terraform_data" "cluster" {
  input = {
    name    = module.name.name
    network = var.values.network_id
  }
}

output "cluster_id" {
  value = terraform_data.cluster.id
}

output "endpoint" {
  value = "https://${cidrhost(var.values.cidr, 10)}:6443"
}
