"""What talks to ZooKeeper: settings, the driver kazoo behind typed methods, and what its errors mean."""
