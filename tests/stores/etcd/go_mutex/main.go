// A contender for tests: takes a lock by Go's concurrency.Mutex again and again, and visits a room that has place for
// one. It ends when it is killed, or with exit code 3 when it met somebody.
//
// Arguments: endpoint, prefix, lease in seconds, room, log.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func visit(room, log string) {
	door, err := os.OpenFile(room, os.O_RDWR|os.O_CREATE, 0o600)
	check(err)
	if syscall.Flock(int(door.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		os.Exit(3)
	}
	time.Sleep(time.Millisecond)
	book, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	check(err)
	_, err = book.WriteString("go 0\n")
	check(err)
	check(book.Close())
	check(door.Close())
}

func main() {
	lease, err := strconv.Atoi(os.Args[3])
	check(err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: 5 * time.Second})
	check(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(lease))
	check(err)
	mutex := concurrency.NewMutex(session, os.Args[2])
	for {
		check(mutex.Lock(context.Background()))
		visit(os.Args[4], os.Args[5])
		check(mutex.Unlock(context.Background()))
	}
}
