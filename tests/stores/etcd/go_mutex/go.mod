module leasehold.test/mutex

go 1.24

require go.etcd.io/etcd/client/v3 v3.5.21
