"""Services: what keeps them as they are wanted. The proxies themselves are in `api.serve`."""
