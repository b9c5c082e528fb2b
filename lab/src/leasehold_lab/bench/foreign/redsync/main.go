// The worker of redsync: it speaks with the bench as leasehold_lab.bench.processes.worker does, a line of JSON each, and runs the
// trial "pairs", and one contender of the trial "handover". A thread of the trial is a goroutine here.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

const lease = 30 * time.Second

type task struct {
	Trial       string  `json:"trial"`
	Concurrency int     `json:"concurrency"`
	Seconds     float64 `json:"seconds"`
	Work        float64 `json:"work"`
	URL         string  `json:"url"`
	Namespace   string  `json:"namespace"`
	Names       int     `json:"names"`
	Me          int64   `json:"me"`    // the number of this contender
	Cells       string  `json:"cells"` // the file that all contenders share
}

type facts map[string]any

func main() {
	lines := bufio.NewReader(os.Stdin)
	hear := func() []byte {
		line, err := lines.ReadBytes('\n')
		if err != nil { // nobody is there any more
			os.Exit(0)
		}
		return line
	}
	say := func(said facts) {
		data, err := json.Marshal(said)
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(append(data, '\n'))
	}
	step := func(name string) {
		say(facts{"step": name})
		hear()
	}
	say(facts{"step": "hello", "version": versions(), "runs": "Go " + strings.TrimPrefix(runtime.Version(), "go")})
	for {
		var asked task
		if err := json.Unmarshal(hear(), &asked); err != nil {
			panic(err)
		}
		if err := trial(asked, step, say); err != nil {
			say(facts{"step": "error", "error": err.Error()})
		}
	}
}

func versions() string {
	info, _ := debug.ReadBuildInfo()
	found := map[string]string{}
	for _, one := range info.Deps {
		found[one.Path] = strings.TrimPrefix(one.Version, "v")
	}
	return found["github.com/go-redsync/redsync/v4"] + " with go-redis " + found["github.com/redis/go-redis/v9"]
}

func trial(asked task, step func(string), say func(facts)) error {
	pools := []redis.Pool{}
	for _, url := range urls(asked.URL) {
		options, err := goredislib.ParseURL(url)
		if err != nil {
			return err
		}
		client := goredislib.NewClient(options)
		defer client.Close()
		pools = append(pools, goredis.NewPool(client))
	}
	locks := redsync.New(pools...)
	mutex := func(name int, options ...redsync.Option) *redsync.Mutex {
		all := append([]redsync.Option{redsync.WithExpiry(lease)}, options...)
		return locks.NewMutex(fmt.Sprintf("%s:%07d", asked.Namespace, name), all...)
	}
	switch asked.Trial {
	case "pairs":
		return pairs(asked, mutex, step, say)
	case "handover":
		return contend(asked, mutex, step, say)
	}
	return fmt.Errorf("this worker knows no trial %q", asked.Trial)
}

type maker func(name int, options ...redsync.Option) *redsync.Mutex

func pairs(asked task, mutex maker, step func(string), say func(facts)) error {
	each := max(1, asked.Names/asked.Concurrency)
	turns := make([][]*redsync.Mutex, asked.Concurrency)
	for index := range turns {
		for at := range each {
			turns[index] = append(turns[index], mutex(index*each+at))
		}
	}
	length := time.Duration(asked.Seconds * float64(time.Second))
	if _, err := together(turns, max(length/5, 200*time.Millisecond)); err != nil {
		return err
	}
	if err := check(mutex); err != nil {
		return err
	}
	step("ready")
	cpu, start := processorTime(), time.Now()
	took, err := together(turns, length)
	seconds := time.Since(start).Seconds()
	cpu = processorTime() - cpu
	step("done")
	if err != nil {
		return err
	}
	sort.Float64s(took)
	say(facts{
		"step": "outcome", "operations": len(took), "turns": len(took), "seconds": seconds, "cpu": cpu,
		"p50": took[len(took)/2], "p99": took[len(took)*99/100],
	})
	return nil
}

// together lets each goroutine take its turns round and round, and returns what each turn took, in seconds.
func together(turns [][]*redsync.Mutex, length time.Duration) ([]float64, error) {
	parts, failed := make([][]float64, len(turns)), make([]error, len(turns))
	var all sync.WaitGroup
	for index, mine := range turns {
		all.Add(1)
		go func() {
			defer all.Done()
			parts[index], failed[index] = repeat(mine, time.Now().Add(length))
		}()
	}
	all.Wait()
	took := []float64{}
	for _, part := range parts {
		took = append(took, part...)
	}
	return took, errors.Join(failed...)
}

func repeat(turns []*redsync.Mutex, until time.Time) ([]float64, error) {
	took, before := []float64{}, time.Now()
	for {
		for _, mutex := range turns {
			if err := mutex.Lock(); err != nil {
				return took, err
			}
			if _, err := mutex.Unlock(); err != nil {
				return took, err
			}
			now := time.Now()
			took = append(took, now.Sub(before).Seconds())
			before = now
			if !now.Before(until) {
				return took, nil
			}
		}
	}
}

// check sees that a name that is held is refused to others, and that after the release it is not.
func check(mutex maker) error {
	one, other := mutex(0), mutex(0, redsync.WithTries(1))
	if err := one.Lock(); err != nil {
		return err
	}
	if other.Lock() == nil {
		return errors.New("two held one name at the same time")
	}
	if _, err := one.Unlock(); err != nil {
		return err
	}
	if err := other.Lock(); err != nil {
		return errors.New("a name could not be acquired again after its release")
	}
	_, err := other.Unlock()
	return err
}

func urls(url string) []string {
	rest, several := strings.CutPrefix(url, "redlock://")
	if !several {
		return []string{url}
	}
	there, database, _ := strings.Cut(rest, "/")
	user := ""
	if at := strings.LastIndex(there, "@"); at >= 0 {
		user, there = there[:at+1], there[at+1:]
	}
	found := []string{}
	for _, host := range strings.Split(there, ",") {
		found = append(found, "redis://"+user+host+"/"+database)
	}
	return found
}

func processorTime() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
