// A js-ceramic node with a new state directory, and what an application does with it. The last line
// of the output is JSON for the test that runs this.
//
//   node app.mjs write URL DIRECTORY             a model, and a document that changes twice
//   node app.mjs change URL DIRECTORY IDS TEXT   load what was written; change the document
//
// URL is the Recon node, DIRECTORY becomes the state directory.

import { createServer } from 'node:http'
import { createServer as createSocket } from 'node:net'
import { CeramicDaemon, DaemonConfig } from '@ceramicnetwork/cli'
import { CeramicClient } from '@ceramicnetwork/http-client'
import { Model } from '@ceramicnetwork/stream-model'
import { ModelInstanceDocument } from '@ceramicnetwork/stream-model-instance'
import { CommitID, StreamID } from '@ceramicnetwork/streamid'
import { DID } from 'dids'
import { Ed25519Provider } from 'key-did-provider-ed25519'
import { getResolver } from 'key-did-resolver'

const SEED = '1f1e1d1c1b1a191817161514131211100f0e0d0c0b0a09080706050403020100'
const POLL = 250 // milliseconds between two loads
const POST = {
  version: '1.0',
  name: 'Post',
  description: 'What someone has to say',
  accountRelation: { type: 'list' },
  schema: {
    type: 'object',
    properties: { text: { type: 'string', maxLength: 300 }, likes: { type: 'integer' } },
    required: ['text'],
    additionalProperties: false,
  },
}

// An anchor service that takes every request and anchors nothing, and a chain without blocks:
// js-ceramic does not start without them.
async function startServices() {
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', (piece) => (body += piece))
    request.on('end', () => {
      const asked = JSON.parse(body || '{}')
      let answer = { id: '1', status: 'PENDING', message: 'later', createdAt: 0, updatedAt: 0 }
      answer = { ...answer, streamId: asked.streamId, cid: asked.cid }
      if (request.url.endsWith('/supported_chains')) answer = { supportedChains: ['eip155:1337'] }
      if (asked.jsonrpc) answer = { jsonrpc: '2.0', id: asked.id, result: '0x539' }
      response.setHeader('content-type', 'application/json')
      response.end(JSON.stringify(answer))
    })
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${server.address().port}`
}

async function freePort() {
  const socket = createSocket()
  await new Promise((resolve) => socket.listen(0, '127.0.0.1', resolve))
  const { port } = socket.address()
  await new Promise((resolve) => socket.close(resolve))
  return port
}

async function start(url, directory) {
  const provider = new Ed25519Provider(Uint8Array.from(Buffer.from(SEED, 'hex')))
  const did = new DID({ provider, resolver: getResolver() })
  await did.authenticate()
  const services = await startServices()
  const port = await freePort()
  const config = {
    anchor: {
      'auth-method': 'did',
      'anchor-service-url': services,
      'ethereum-rpc-url': services,
    },
    'http-api': { port, hostname: '127.0.0.1', 'admin-dids': [did.id] },
    ipfs: { mode: 'remote', host: url },
    logger: { 'log-level': 2, 'log-to-files': false },
    metrics: { 'metrics-exporter-enabled': false, 'metrics-publisher-enabled': false },
    network: { name: 'local' },
    node: { 'private-seed-url': `inplace:ed25519#${SEED}` },
    'state-store': { mode: 'fs', 'local-directory': directory },
    indexing: {
      db: `sqlite://${directory}/index.sqlite`,
      'disable-composedb': true, // it needs a native build of SQLite
      'allow-queries-before-historical-sync': true,
    },
  }
  const daemon = await CeramicDaemon.create(DaemonConfig.fromObject(config))
  const client = new CeramicClient(`http://127.0.0.1:${port}`)
  client.did = did
  return { client, daemon }
}

async function write(client) {
  const { client: reader } = await start(url, `${directory}-reader`)
  const model = await Model.create(client, POST)
  const post = await ModelInstanceDocument.create(client, { text: 'first' }, { model: model.id })
  let loaded = await ModelInstanceDocument.load(reader, post.id)
  await post.replace({ text: 'second' })
  await post.patch([{ op: 'add', path: '/likes', value: 3 }])
  while (loaded.tip.toString() !== post.tip.toString()) { // the feed brings it; the test has a limit
    await new Promise((resolve) => setTimeout(resolve, POLL))
    loaded = await ModelInstanceDocument.load(reader, post.id)
  }
  return {
    ids: { model: model.id.toString(), post: post.id.toString(), tip: post.tip.toString() },
    content: loaded.content,
  }
}

async function change(client, ids, text) {
  // js-ceramic drops what its feed says of streams that it has not loaded yet. A commit has it load
  // all before it.
  await client.loadStream(CommitID.make(StreamID.fromString(ids.post), ids.tip))
  const post = await ModelInstanceDocument.load(client, ids.post)
  const { content } = post
  const model = await Model.load(client, ids.model)
  await post.replace({ ...content, text })
  const tip = post.tip.toString()
  return { ids: { ...ids, tip }, found: content, content: post.content, model: model.content.name }
}

const [command, url, directory, ids, text] = process.argv.slice(2)
const { client } = await start(url, directory)
const done = command === 'write' ? await write(client) : await change(client, JSON.parse(ids), text)
console.log(JSON.stringify(done))
process.exit(0) // its state is in the Recon node; the next run has another state directory
