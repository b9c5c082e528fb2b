// A process that shares one lock of redsync: KIND URL KEY LEASE_MS [ROOM]. Its orders are those of lock_peer.py. A URL
// redlock://h1,h2,h3 names the servers of several pools.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func main() {
	kind, key := os.Args[1], os.Args[3]
	lease, err := strconv.Atoi(os.Args[4])
	check(err)
	url := strings.Split(os.Args[2], "?")[0]
	pools := []redis.Pool{}
	for _, host := range strings.Split(strings.SplitN(url, "://", 2)[1], ",") {
		pools = append(pools, goredis.NewPool(connect("redis://"+host)))
	}
	client := connect(url)
	if len(os.Args) > 5 {
		client = connect(os.Args[5])
	}
	mutex := redsync.New(pools...).NewMutex(key,
		redsync.WithExpiry(time.Duration(lease)*time.Millisecond),
		redsync.WithTries(100000),
		redsync.WithRetryDelay(5*time.Millisecond))
	say("ready")
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		words := strings.Fields(orders.Text())
		switch words[0] {
		case "count":
			visits, err := strconv.Atoi(words[1])
			check(err)
			for range visits {
				check(mutex.Lock())
				visit(client, kind, key)
				unlock(mutex)
			}
			say("counted")
		case "lock":
			check(mutex.Lock())
			say("held 0")
		case "try":
			err := mutex.TryLock()
			var taken *redsync.ErrTaken
			if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
				say("none")
			} else {
				check(err)
				say("held 0")
			}
		case "unlock":
			unlock(mutex)
			say("released")
		}
	}
}

func connect(url string) *goredislib.Client {
	if strings.HasPrefix(url, "redlock:") {
		return nil
	}
	options, err := goredislib.ParseURL(url)
	check(err)
	return goredislib.NewClient(options)
}

func unlock(mutex *redsync.Mutex) {
	released, err := mutex.Unlock()
	check(err)
	if !released {
		say("lost")
	}
}

func visit(client *goredislib.Client, kind string, key string) {
	entered, err := client.SetNX(ctx, key+":room", kind, 0).Result()
	check(err)
	if !entered {
		say("overlap")
	}
	seen, err := client.Get(ctx, key+":count").Int()
	if !errors.Is(err, goredislib.Nil) {
		check(err)
	}
	time.Sleep(500 * time.Microsecond)
	check(client.Set(ctx, key+":count", seen+1, 0).Err())
	check(client.RPush(ctx, key+":log", kind+" 0").Err())
	check(client.Del(ctx, key+":room").Err())
}

func check(err error) {
	if err != nil {
		say("error: " + err.Error())
		os.Exit(1)
	}
}

func say(text string) {
	fmt.Println(text)
}
