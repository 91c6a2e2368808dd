# A controller on an EC2 instance: its role, its disk, one open port, a static address.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

data "aws_subnet" "this" {
  id = var.subnet_id
}

data "aws_ssm_parameter" "image" {
  name = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
}

resource "aws_iam_role" "this" {
  name = var.name
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Principal = { Service = "ec2.amazonaws.com" }, Action = "sts:AssumeRole" }
    ]
  })
}

resource "aws_iam_role_policy" "this" {
  name   = "perdure-controller"
  role   = aws_iam_role.this.id
  policy = file("${path.module}/../../iam/aws-controller.json")
}

resource "aws_iam_role_policy" "buckets" {
  name   = "perdure-buckets"
  role   = aws_iam_role.this.id
  policy = file("${path.module}/../../iam/aws-buckets.json")
}

# The nodes of jobs get the rights of this role, each for its own bucket and prefix (s3.node_role).
resource "aws_iam_role" "node" {
  name = "perdure-node-${var.name}"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Principal = { AWS = aws_iam_role.this.arn }, Action = "sts:AssumeRole" }
    ]
  })
}

resource "aws_iam_role_policy" "node" {
  name   = "perdure-node"
  role   = aws_iam_role.node.id
  policy = file("${path.module}/../../iam/aws-node.json")
}

# Additional permissions of the role, such as shells through Systems Manager.
resource "aws_iam_role_policy_attachment" "more" {
  for_each   = toset(var.more_policies)
  role       = aws_iam_role.this.name
  policy_arn = each.value
}

resource "aws_iam_instance_profile" "this" {
  name = var.name
  role = aws_iam_role.this.name
}

resource "aws_security_group" "this" {
  name        = var.name
  description = "Calls to the Perdure controller"
  vpc_id      = data.aws_subnet.this.vpc_id

  ingress {
    description = "Users and nodes: TLS, with a token"
    from_port   = 8443
    to_port     = 8443
    protocol    = "tcp"
    cidr_blocks = var.callers
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_eip" "this" {
  domain = "vpc"
  tags   = { Name = var.name }
}

resource "aws_ebs_volume" "state" {
  availability_zone = data.aws_subnet.this.availability_zone
  size              = var.disk_gib
  type              = "gp3"
  encrypted         = true
  tags              = { Name = "${var.name}-state" }

  lifecycle {
    prevent_destroy = true
  }
}

module "user_data" {
  source  = "../user-data"
  device  = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${replace(aws_ebs_volume.state.id, "-", "")}"
  address = aws_eip.this.public_ip
  package = var.package
  config  = merge({ s3 = { node_role = aws_iam_role.node.arn } }, var.config)
}

resource "aws_instance" "this" {
  ami                         = data.aws_ssm_parameter.image.value
  instance_type               = var.instance_type
  subnet_id                   = data.aws_subnet.this.id
  vpc_security_group_ids      = [aws_security_group.this.id]
  iam_instance_profile        = aws_iam_instance_profile.this.name
  associate_public_ip_address = true # for downloads until the static address is attached
  user_data                   = module.user_data.text
  user_data_replace_on_change = true
  tags                        = { Name = var.name }

  metadata_options {
    http_tokens = "required"
  }

  lifecycle {
    ignore_changes = [ami] # a newer image must not replace the machine
  }
}

resource "aws_volume_attachment" "state" {
  device_name                    = "/dev/sdf"
  volume_id                      = aws_ebs_volume.state.id
  instance_id                    = aws_instance.this.id
  stop_instance_before_detaching = true
}

resource "aws_eip_association" "this" {
  allocation_id = aws_eip.this.id
  instance_id   = aws_instance.this.id
}
