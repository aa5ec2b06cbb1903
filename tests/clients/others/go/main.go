// The official Go client as a program that obeys: one JSON command a line on standard input, one JSON answer a line.
// What the commands mean is told in ../conversation.py, which speaks to the program of every language.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const patience = 60 * time.Second

type command struct {
	Op           string `json:"op"`
	Topic        string `json:"topic"`
	Subscription string `json:"subscription"`
	Type         string `json:"type"`
	From         int    `json:"from"`
	Count        int    `json:"count"`
	Size         int    `json:"size"`
	Retries      int    `json:"retries"`
	Batch        bool   `json:"batch"`
	Chunk        bool   `json:"chunk"`
	Compression  string `json:"compression"`
	Acknowledge  string `json:"acknowledge"`
}

type answer map[string]any

type program struct {
	client   pulsar.Client
	consumer pulsar.Consumer
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func payload(number, size int) []byte {
	text := strconv.Itoa(number)
	return []byte(text + strings.Repeat(".", max(0, size-len(text))))
}

func number(payload []byte) int {
	end := 0
	for end < len(payload) && payload[end] != '.' {
		end++
	}
	value, err := strconv.Atoi(string(payload[:end]))
	if err != nil {
		return -1
	}
	return value
}

func (p *program) producer(c command) (pulsar.Producer, error) {
	options := pulsar.ProducerOptions{
		Topic:           c.Topic,
		DisableBatching: !c.Batch,
		EnableChunking:  c.Chunk,
		SendTimeout:     patience,
	}
	switch c.Compression {
	case "LZ4":
		options.CompressionType = pulsar.LZ4
	case "ZLib":
		options.CompressionType = pulsar.ZLib
	case "ZSTD":
		options.CompressionType = pulsar.ZSTD
	}
	return p.client.CreateProducer(options)
}

// send publishes all of a command's messages with many on the way, and waits for every receipt.
func send(producer pulsar.Producer, c command) error {
	ctx, cancel := within()
	defer cancel()
	failed := make(chan error, c.Count)
	for n := c.From; n < c.From+c.Count; n++ {
		message := &pulsar.ProducerMessage{
			Payload:    payload(n, c.Size),
			Key:        "key-" + strconv.Itoa(n%7),
			Properties: map[string]string{"number": strconv.Itoa(n)},
		}
		producer.SendAsync(ctx, message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { failed <- err })
	}
	for range c.Count {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

func described(message pulsar.Message) answer {
	payload := message.Payload()
	return answer{
		"number":      number(payload),
		"size":        len(payload),
		"key":         message.Key(),
		"property":    message.Properties()["number"],
		"redelivered": message.RedeliveryCount(),
		"id":          fmt.Sprintf("%d:%d:%d", message.ID().LedgerID(), message.ID().EntryID(), message.ID().BatchIdx()),
	}
}

func (p *program) subscribe(c command) (answer, error) {
	if p.consumer != nil {
		p.consumer.Close()
	}
	types := map[string]pulsar.SubscriptionType{
		"Exclusive": pulsar.Exclusive, "Shared": pulsar.Shared, "Failover": pulsar.Failover, "Key_Shared": pulsar.KeyShared,
	}
	options := pulsar.ConsumerOptions{
		Topic:                       c.Topic,
		SubscriptionName:            c.Subscription,
		Type:                        types[c.Type],
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		NackRedeliveryDelay:         100 * time.Millisecond,
	}
	if c.Retries > 0 {
		options.RetryEnable = true
		options.DLQ = &pulsar.DLQPolicy{
			MaxDeliveries:    uint32(c.Retries),
			RetryLetterTopic: c.Topic + "-" + c.Subscription + "-RETRY",
			DeadLetterTopic:  c.Topic + "-" + c.Subscription + "-DLQ",
		}
	}
	consumer, err := p.client.Subscribe(options)
	p.consumer = consumer
	return answer{}, err
}

func (p *program) consume(c command) (answer, error) {
	ctx, cancel := within()
	defer cancel()
	seen := []answer{}
	for len(seen) < c.Count {
		message, err := p.consumer.Receive(ctx)
		if err != nil {
			return nil, err
		}
		seen = append(seen, described(message))
		switch c.Acknowledge {
		case "individual":
			err = p.consumer.Ack(message)
		case "cumulative":
			if len(seen) == c.Count {
				err = p.consumer.AckCumulative(message)
			}
		case "negative":
			p.consumer.Nack(message)
		case "later":
			p.consumer.ReconsumeLater(message, 200*time.Millisecond)
		}
		if err != nil {
			return nil, err
		}
	}
	return answer{"messages": seen}, nil
}

func (p *program) read(c command) (answer, error) {
	reader, err := p.client.CreateReader(pulsar.ReaderOptions{Topic: c.Topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	ctx, cancel := within()
	defer cancel()
	seen := []answer{}
	for reader.HasNext() {
		message, err := reader.Next(ctx)
		if err != nil {
			return nil, err
		}
		seen = append(seen, described(message))
	}
	return answer{"messages": seen}, nil
}

// stream publishes and consumes at the same time; at half it says so, and goes on while whoever asked breaks something.
func (p *program) stream(c command, say func(answer)) (answer, error) {
	producer, err := p.producer(c)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	sent := make(chan error, 1)
	half := make(chan struct{})
	go func() {
		first, second := c, c
		first.Count = c.Count / 2
		second.From, second.Count = c.From+first.Count, c.Count-first.Count
		if err := send(producer, first); err != nil {
			sent <- err
			return
		}
		<-half
		sent <- send(producer, second)
	}()
	seen := map[int]int{}
	for len(seen) < c.Count {
		ctx, cancel := within()
		message, err := p.consumer.Receive(ctx)
		cancel()
		if err != nil {
			return nil, err
		}
		seen[number(message.Payload())]++
		if err := p.consumer.Ack(message); err != nil {
			return nil, err
		}
		if len(seen) == c.Count/2 && half != nil {
			say(answer{"half": true})
			close(half)
			half = nil
		}
	}
	again := 0
	for _, times := range seen {
		again += times - 1
	}
	return answer{"distinct": len(seen), "again": again}, <-sent
}

func (p *program) obey(c command, say func(answer)) (answer, error) {
	switch c.Op {
	case "publish":
		producer, err := p.producer(c)
		if err != nil {
			return nil, err
		}
		defer producer.Close()
		return answer{"sent": c.Count}, send(producer, c)
	case "subscribe":
		return p.subscribe(c)
	case "consume":
		return p.consume(c)
	case "seek":
		// EarliestMessageID() names no partition, and Seek of this client wants one.
		return answer{}, p.consumer.Seek(pulsar.NewMessageID(-1, -1, -1, 0))
	case "read":
		return p.read(c)
	case "stream":
		return p.stream(c, say)
	case "unsubscribe":
		err := p.consumer.Unsubscribe()
		p.consumer = nil
		return answer{}, err
	}
	return nil, fmt.Errorf("no such command: %q", c.Op)
}

func main() {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: os.Args[1]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer client.Close()
	out := json.NewEncoder(os.Stdout)
	say := func(a answer) {
		if err := out.Encode(a); err != nil {
			os.Exit(1)
		}
	}
	p := &program{client: client}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			say(answer{"error": err.Error()})
			continue
		}
		result, err := p.obey(c, say)
		if err != nil {
			result = answer{"error": err.Error()}
		}
		say(result)
	}
}
