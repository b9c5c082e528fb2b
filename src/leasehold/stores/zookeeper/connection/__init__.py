"""The connection to ZooKeeper: settings, typed requests over the driver kazoo, and the meaning of its errors."""
