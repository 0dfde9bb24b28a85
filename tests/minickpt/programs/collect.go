// SPDX-License-Identifier: Apache-2.0 OR MIT

// collect STOP [LINES]: goroutines that make garbage, with the collector, timers and channels;
// each line says what came of a round. Until STOP is there, or so many lines.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"time"
)

type node struct {
	left, right *node
	sum         [32]byte
}

func tree(depth int, seed byte) *node {
	n := &node{sum: sha256.Sum256([]byte{seed, byte(depth)})}
	if depth > 0 {
		n.left, n.right = tree(depth-1, seed+1), tree(depth-1, seed+2)
	}
	return n
}

func (n *node) digest() [32]byte {
	if n == nil {
		return [32]byte{}
	}
	l, r := n.left.digest(), n.right.digest()
	return sha256.Sum256(append(append(n.sum[:], l[:]...), r[:]...))
}

func main() {
	lines := -1
	if len(os.Args) > 2 {
		lines, _ = strconv.Atoi(os.Args[2])
	}
	kept := tree(10, 1)
	for number := 1; number-1 != lines; number++ {
		if _, err := os.Stat(os.Args[1]); lines < 0 && err == nil {
			return
		}
		results := make(chan [32]byte, 4)
		for worker := 0; worker < 4; worker++ {
			go func() {
				time.Sleep(time.Duration(worker+1) * time.Millisecond)
				results <- tree(9, byte(number+worker)).digest()
			}()
		}
		var all [32]byte
		for worker := 0; worker < 4; worker++ {
			part := <-results
			for i := range all {
				all[i] ^= part[i]
			}
		}
		whole := kept.digest()
		fmt.Printf("%d %x %x end\n", number, all[:8], whole[:8])
	}
}
