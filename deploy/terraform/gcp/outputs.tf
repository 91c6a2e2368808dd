output "endpoint" {
  description = "PERDURE_ENDPOINT. On the machine, /var/lib/perdure/token contains PERDURE_TOKEN, and controller.json the fingerprint."
  value       = "https://${google_compute_address.this.address}:8443"
}

output "disk" {
  description = "The disk that holds the state."
  value       = google_compute_disk.state.id
}
