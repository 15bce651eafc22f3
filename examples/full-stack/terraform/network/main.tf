variable "cidr" {
  type        = string
  description = "The address range of the whole network."
}

module "name" {
  source = "../modules/name"
  layer  = "network"
}

resource "terraform_data" "network" {
  input = {
    name = module.name.name
    cidr = var.cidr
  }
}

resource "terraform_data" "subnet" {
  for_each = { a = 0, b = 1, c = 2 }

  input = {
    network = terraform_data.network.id
    cidr    = cidrsubnet(var.cidr, 4, each.value)
  }
}

output "network_id" {
  value = terraform_data.network.id
}

output "cidr" {
  value = terraform_data.network.output.cidr
}

output "subnets" {
  value = [for s in terraform_data.subnet : s.output.cidr]
}
