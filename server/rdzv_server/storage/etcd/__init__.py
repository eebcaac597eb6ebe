"""State in etcd, and whose turn it is to serve: several servers, of which one leads."""
