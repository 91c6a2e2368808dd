output "endpoint" {
  description = "PERDURE_ENDPOINT. PERDURE_TOKEN is /var/lib/perdure/token there; the fingerprint is in controller.json."
  value       = "https://${aws_eip.this.public_ip}:8443"
}

output "disk" {
  description = "What holds the state."
  value       = aws_ebs_volume.state.id
}
