// The official Node.js client as a program that obeys: one JSON command a line on standard input, one JSON answer a line.
// What the commands mean is told in ../conversation.py, which speaks to the program of every language.
'use strict';

const readline = require('node:readline');
const Pulsar = require('pulsar-client');

const PATIENCE_MS = 60_000;

const payload = (number, size) => Buffer.from(String(number).padEnd(size, '.'));
const number = (data) => parseInt(data.toString(), 10);
const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);

function described(message) {
  const data = message.getData();
  return {
    number: number(data),
    size: data.length,
    key: message.getPartitionKey(),
    property: message.getProperties().number,
    redelivered: message.getRedeliveryCount(),
    id: message.getMessageId().toString().replace(/[()]/g, '').split(',').slice(0, 3).join(':'),
  };
}

class Program {
  constructor(client) {
    this.client = client;
    this.consumer = null;
  }

  producer(c) {
    return this.client.createProducer({
      topic: c.topic,
      batchingEnabled: c.batch,
      chunkingEnabled: c.chunk,
      blockIfQueueFull: true,
      sendTimeoutMs: PATIENCE_MS,
      compressionType: c.compression === '' ? 'None' : c.compression === 'ZLib' ? 'Zlib' : c.compression,
    });
  }

  // Publishes with many on the way and waits for every receipt.
  static async send(producer, from, count, size) {
    const receipts = [];
    for (let n = from; n < from + count; n += 1) {
      receipts.push(producer.send({
        data: payload(n, size),
        partitionKey: `key-${n % 7}`,
        properties: { number: String(n) },
      }));
    }
    await producer.flush();
    await Promise.all(receipts);
  }

  async publish(c) {
    const producer = await this.producer(c);
    await Program.send(producer, c.from, c.count, c.size);
    await producer.close();
    return { sent: c.count };
  }

  async subscribe(c) {
    if (this.consumer) await this.consumer.close();
    this.consumer = await this.client.subscribe({
      topic: c.topic,
      subscription: c.subscription,
      subscriptionType: c.type.replace('_', ''),
      subscriptionInitialPosition: 'Earliest',
      nAckRedeliverTimeoutMs: 100,
    });
    return {};
  }

  async consume(c) {
    const messages = [];
    while (messages.length < c.count) {
      const message = await this.consumer.receive(PATIENCE_MS);
      messages.push(described(message));
      if (c.acknowledge === 'individual') await this.consumer.acknowledge(message);
      else if (c.acknowledge === 'negative') this.consumer.negativeAcknowledge(message);
      else if (c.acknowledge === 'cumulative' && messages.length === c.count) {
        await this.consumer.acknowledgeCumulative(message);
      }
    }
    return { messages };
  }

  async seek() {
    await this.consumer.seek(Pulsar.MessageId.earliest());
    return {};
  }

  async read(c) {
    const reader = await this.client.createReader({ topic: c.topic, startMessageId: Pulsar.MessageId.earliest() });
    const messages = [];
    while (reader.hasNext()) messages.push(described(await reader.readNext(PATIENCE_MS)));
    await reader.close();
    return { messages };
  }

  // Publishes and consumes at the same time; at half it says so, and goes on while whoever asked breaks something.
  async stream(c) {
    const first = Math.floor(c.count / 2);
    const producer = await this.producer(c);
    const seen = new Map();
    let sending = Program.send(producer, c.from, first, c.size);
    let told = false;
    while (seen.size < c.count) {
      const message = await this.consumer.receive(PATIENCE_MS);
      const which = number(message.getData());
      seen.set(which, (seen.get(which) ?? 0) + 1);
      await this.consumer.acknowledge(message);
      if (seen.size === first && !told) {
        told = true;
        await sending;
        say({ half: true });
        sending = Program.send(producer, c.from + first, c.count - first, c.size);
      }
    }
    await sending;
    await producer.close();
    let again = 0;
    for (const times of seen.values()) again += times - 1;
    return { distinct: seen.size, again };
  }

  async unsubscribe() {
    await this.consumer.unsubscribe();
    this.consumer = null;
    return {};
  }
}

async function main() {
  Pulsar.Client.setLogHandler((level, file, line, message) => process.stderr.write(`${level} ${file}:${line} ${message}\n`));
  const client = new Pulsar.Client({ serviceUrl: process.argv[2] });
  const program = new Program(client);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      const c = JSON.parse(line);
      const known = ['publish', 'subscribe', 'consume', 'seek', 'read', 'stream', 'unsubscribe'];
      if (!known.includes(c.op)) throw new Error(`no such command: ${c.op}`);
      say(await program[c.op](c));
    } catch (failure) {
      say({ error: String(failure) });
    }
  }
  await client.close();
}

main();
