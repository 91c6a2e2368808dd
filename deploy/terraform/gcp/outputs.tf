output "endpoint" {
  description = "PERDURE_ENDPOINT. PERDURE_TOKEN is /var/lib/perdure/token there; the fingerprint is in controller.json."
  value       = "https://${google_compute_address.this.address}:8443"
}

output "disk" {
  description = "What holds the state."
  value       = google_compute_disk.state.id
}
