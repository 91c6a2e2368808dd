output "endpoint" {
  description = "PERDURE_ENDPOINT. On the machine, /var/lib/perdure/token contains PERDURE_TOKEN, and controller.json the fingerprint."
  value       = "https://${aws_eip.this.public_ip}:8443"
}

output "disk" {
  description = "The disk that holds the state."
  value       = aws_ebs_volume.state.id
}
