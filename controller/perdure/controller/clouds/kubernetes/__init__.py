"""Kubernetes as a cloud: an attempt is a set of pods, and a context of the kubeconfig is a region.

`descriptor` describes it to Perdure; `cloud` implements `Cloud`; `api` is the client; `nodes` turns the nodes of a
cluster into offers; `pods` writes, creates and reads pods; `notices` watches for interruptions.
"""
