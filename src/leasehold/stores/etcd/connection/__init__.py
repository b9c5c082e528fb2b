"""What speaks with etcd: its HTTP/JSON gateway, one request a call, and what each of its errors means."""
