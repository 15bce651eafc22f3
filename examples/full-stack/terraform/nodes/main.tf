variable "cluster_id" {
  type = string
}

locals {
  node_count = 3
}

resource "terraform_data" "node" {
  count = local.node_count

  input = {
    cluster = var.cluster_id
    number  = count.index
  }
}

output "node_count" {
  value = length(terraform_data.node)
}
