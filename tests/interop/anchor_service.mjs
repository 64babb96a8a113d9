// Reads an answer of the anchor service as js-ceramic does, and walks the path of its witness.
import { CASResponseOrError } from '@ceramicnetwork/codecs'
import { decode } from 'codeco'

const found = decode(CASResponseOrError, JSON.parse(process.argv[2]))
const car = found.witnessCar
const commit = car.get(car.roots[0])
const proof = car.get(commit.proof)
let node = proof.root
for (const index of commit.path.split('/')) node = car.get(node)[Number(index)]
console.log(
  JSON.stringify({
    status: found.status,
    cid: String(found.cid),
    streamId: String(found.streamId),
    chainId: proof.chainId,
    txType: proof.txType,
    end: String(node),
    prev: String(commit.prev),
    id: String(commit.id),
  })
)
