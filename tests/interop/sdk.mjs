// What an application does with the Ceramic SDK, unchanged, against a node. The last line of the
// output is JSON for the test that runs this.
//
//   node sdk.mjs write URL [TOKEN]    a model, documents and updates, as one author
//   node sdk.mjs read URL IDS         the same documents again, from any node
//   node sdk.mjs inspect URL          every event of the node's feed, by the SDK's strict codecs

import { TimeEvent, carFromString, eventFromCAR } from '@ceramic-sdk/events'
import { CeramicClient } from '@ceramic-sdk/http-client'
import { ModelClient } from '@ceramic-sdk/model-client'
import { ModelInstanceClient } from '@ceramic-sdk/model-instance-client'
import {
  DocumentDataEventPayload,
  DocumentInitEventPayload,
} from '@ceramic-sdk/model-instance-protocol'
import { ModelDataEventPayload, ModelInitEventPayload } from '@ceramic-sdk/model-protocol'
import { StreamClient } from '@ceramic-sdk/stream-client'
import { getAuthenticatedDID } from '@didtools/key-did'
import * as dagCbor from '@ipld/dag-cbor'
import { decode } from 'codeco'
import { DID } from 'dids'
import { getResolver } from 'key-did-resolver'

const POST = {
  version: '2.0',
  name: 'Post',
  description: 'What someone has to say',
  interface: false,
  implements: [],
  schema: {
    type: 'object',
    properties: {
      text: { type: 'string', maxLength: 300 },
      tags: { type: 'array', items: { type: 'string' } },
    },
    required: ['text'],
    additionalProperties: false,
  },
  accountRelation: { type: 'list' },
}
const PROFILE = {
  ...POST,
  name: 'Profile',
  schema: {
    type: 'object',
    properties: { name: { type: 'string' } },
    additionalProperties: false,
  },
  accountRelation: { type: 'single' },
}
const VOTE = {
  ...POST,
  name: 'Vote',
  schema: {
    type: 'object',
    properties: { topic: { type: 'string' }, yes: { type: 'boolean' } },
    additionalProperties: false,
  },
  accountRelation: { type: 'set', fields: ['topic'] },
  immutableFields: ['topic'],
}

async function write(url, token) {
  const did = await getAuthenticatedDID(new Uint8Array(32).fill(7))
  const headers = token ? { authorization: `Bearer ${token}` } : {}
  const ceramic = new CeramicClient({ url, headers })
  const models = new ModelClient({ ceramic, did })
  const documents = new ModelInstanceClient({ ceramic, did })
  const ids = {}

  const post = await models.createDefinition(POST)
  const profile = await models.createDefinition(PROFILE)
  const vote = await models.createDefinition(VOTE)
  for (const model of ['kh4q0ozorrgaq2mezktnrmdwleo1d', post, profile, vote])
    await ceramic.registerInterestModel(model.toString())
  await models.updateDefinition({
    streamID: post.toString(),
    newContent: { ...POST, description: 'A short text' },
  })
  ids.model = post.toString()

  const first = await documents.createInstance({
    model: post,
    modelDefinition: POST,
    content: { text: 'first', tags: ['a/b', 'c~d'] },
    shouldIndex: true,
    modelVersion: post.cid,
  })
  ids.post = first.baseID.toString()
  const second = await documents.updateDocument({
    streamID: ids.post,
    newContent: { text: 'second', tags: ['c~d'] },
  })
  ids.commit = second.commitID.toString()
  await documents.updateDocument({
    streamID: ids.post,
    newContent: { text: 'third ☃' },
    shouldIndex: false,
  })

  const mine = await documents.createInstance({ model: profile, modelDefinition: PROFILE })
  ids.profile = mine.baseID.toString()
  await documents.updateDocument({ streamID: ids.profile, newContent: { name: 'Ada' } })
  await documents.updateDocument({ streamID: ids.profile, newContent: { name: 'Ada L.' } })

  const ballot = await documents.createInstance({
    model: vote,
    modelDefinition: VOTE,
    content: { topic: 'tea' },
  })
  ids.vote = ballot.baseID.toString()
  await documents.updateDocument({
    streamID: ids.vote,
    newContent: { topic: 'tea', yes: true },
  })
  return { ids, did: did.id, version: (await ceramic.getVersion()).version }
}

async function read(url, ids) {
  const did = await getAuthenticatedDID(new Uint8Array(32).fill(8))
  const ceramic = new CeramicClient({ url })
  const models = new ModelClient({ ceramic, did })
  const documents = new ModelInstanceClient({ ceramic, did })
  const streams = new StreamClient({ ceramic })

  const states = {}
  for (const name of ['post', 'profile', 'vote']) {
    const { content, metadata } = await documents.getDocumentState(ids[name])
    states[name] = { content, metadata: { ...metadata, model: metadata.model.toString() } }
  }
  const event = await documents.getEvent(ids.commit)
  const payload = await models.getPayload(ids.model)
  const feed = await ceramic.getEventsFeed()
  const missing = await streams
    .getStreamState('k2t6wzhjp5kk3zrbu5tyfjqdrhxyvwnzmxv8htviiganzacva34pfedi5g72tp')
    .catch((error) => error.message)
  return {
    states,
    definition: await models.getModelDefinition(ids.model),
    documentModel: await models.getDocumentModel(ids.post),
    signedEvent: Object.keys(event).sort(),
    firstDefinition: payload.data,
    feedLength: feed.events.length,
    missing,
  }
}

const CODECS = {
  ModelInit: ModelInitEventPayload,
  DocumentInit: DocumentInitEventPayload,
  DocumentData: DocumentDataEventPayload,
  ModelData: ModelDataEventPayload,
}

// The codecs that read a payload and write the same bytes again: they know each of its fields.
function fitting(block) {
  return Object.keys(CODECS).filter((name) => {
    try {
      const value = decode(CODECS[name], dagCbor.decode(block))
      return Buffer.from(dagCbor.encode(CODECS[name].encode(value))).equals(Buffer.from(block))
    } catch {
      return false
    }
  })
}

async function inspect(url) {
  const verifier = new DID({ resolver: getResolver() })
  const answer = await fetch(`${url}/ceramic/feed/events?limit=1000&includeData=full`)
  const found = {}
  for (const { id, data } of (await answer.json()).events) {
    const car = carFromString(data)
    const event = eventFromCAR({ name: 'any', decode: (value, context) => context.success(value) }, car)
    const block = event.jws ? event.linkedBlock : car.blocks.get(car.roots[0]).payload
    const signer = event.jws ? (await verifier.verifyJWS(event.jws)).kid.split('#')[0] : null
    found[id] = { fits: fitting(block), signer, time: TimeEvent.is(event) }
  }
  return found
}

const [, , what, url, argument] = process.argv
const run = { write: () => write(url, argument), inspect: () => inspect(url) }
const answer = what in run ? await run[what]() : await read(url, JSON.parse(argument))
console.log(JSON.stringify(answer))
