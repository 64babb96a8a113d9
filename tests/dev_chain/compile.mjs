// Compiles the contract with the settings that contract.py names; prints its bytecode as JSON.
import fs from 'node:fs'
import { createRequire } from 'node:module'

const solc = createRequire(import.meta.url)('solc')
const input = {
  language: 'Solidity',
  sources: { 'Anchors.sol': { content: fs.readFileSync(process.argv[2], 'utf8') } },
  settings: {
    evmVersion: 'paris',
    optimizer: { enabled: true, runs: 1000000 },
    metadata: { appendCBOR: false, bytecodeHash: 'none' },
    outputSelection: { '*': { '*': ['evm.bytecode.object'] } },
  },
}
const output = JSON.parse(solc.compile(JSON.stringify(input)))
console.log(JSON.stringify(output.contracts['Anchors.sol'].Anchors.evm.bytecode.object))
