package main

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/go-redsync/redsync/v4"
)

// The cells that all contenders share, as in leasehold_lab.bench.trials.handover.
const (
	inside = iota
	last
	token
	freed
	start
	until
	cells
)

// contend takes the one name again and again until the end of the run, and sends what it counted.
func contend(asked task, mutex maker, step func(string), say func(facts)) error {
	shared, err := mapped(asked.Cells)
	if err != nil {
		return err
	}
	defer syscall.Munmap(shared)
	cell := func(at int64) *int64 { return (*int64)(unsafe.Pointer(&shared[8*at])) }
	if _, err := repeat([]*redsync.Mutex{mutex(int(asked.Me))}, time.Now().Add(200*time.Millisecond)); err != nil {
		return err
	}
	one := mutex(0)
	step("ready")
	turns, switches, overlaps, cpu, took := 0, 0, 0, 0.0, []float64{}
	running := false
	for {
		if err := lock(one); err != nil {
			return err
		}
		now := monotonic()
		begin, end := atomic.LoadInt64(cell(start)), atomic.LoadInt64(cell(until))
		if !running && now >= begin {
			cpu, running = processorTime(), true
		}
		if atomic.LoadInt64(cell(inside)) != 0 {
			overlaps++
		}
		atomic.StoreInt64(cell(inside), asked.Me)
		if begin <= now && now < end {
			turns++
			if atomic.LoadInt64(cell(last)) != asked.Me {
				switches++
				took = append(took, float64(now-atomic.LoadInt64(cell(freed)))/1e9)
			}
		}
		atomic.StoreInt64(cell(last), asked.Me)
		atomic.StoreInt64(cell(cells+asked.Me), 1)
		if asked.Work > 0 {
			time.Sleep(time.Duration(asked.Work * float64(time.Second)))
		}
		if atomic.LoadInt64(cell(inside)) != asked.Me {
			overlaps++
		}
		atomic.StoreInt64(cell(inside), 0)
		atomic.StoreInt64(cell(freed), monotonic())
		if _, err := one.Unlock(); err != nil {
			return err
		}
		if now >= end {
			break
		}
	}
	say(facts{
		"step": "part", "turns": turns, "switches": switches, "overlaps": overlaps,
		"cpu": processorTime() - cpu, "took": took,
	})
	return nil
}

// lock tries again when all of redsync's tries were in vain.
func lock(one *redsync.Mutex) error {
	for {
		err := one.Lock()
		var taken *redsync.ErrTaken
		if err == nil || !(errors.Is(err, redsync.ErrFailed) || errors.As(err, &taken)) {
			return err
		}
	}
}

func mapped(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	about, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return syscall.Mmap(int(file.Fd()), 0, int(about.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

// monotonic returns nanoseconds of the clock that all contenders read; the clock of package time has another origin.
func monotonic() int64 {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}
