// What the SDK's Flight SQL client gets from `spark-sink serve`, as JSON on the last line.
//   node flight.mjs PORT EVENTS   EVENTS: how many the feed will have
import { createFlightSqlClient } from '@ceramic-sdk/flight-sql-client'
import { tableFromIPC } from 'apache-arrow'

const [port, events] = process.argv.slice(2).map(Number)
const client = await createFlightSqlClient({ headers: [], tls: false, host: '127.0.0.1', port })
const rows = (data) => tableFromIPC(data).toArray()
const hex = (bytes) => Buffer.from(bytes).toString('hex')

const catalogs = rows(await client.getCatalogs()).map((row) => row.catalog_name)
const schemas = rows(await client.getDbSchemas({})).map((row) => row.db_schema_name)
const tables = rows(await client.getTables({ includeSchema: true })).length

const [first] = rows(await client.query('SELECT * FROM conclusion_events LIMIT 1'))
const stream = hex(first.stream_cid)
const ofStream = 'SELECT event_cid FROM conclusion_events WHERE stream_cid ='
const queried = rows(await client.query(`${ofStream} X'${stream}'`)).length
const prepared = rows(await client.preparedQuery(`${ofStream} $cid`, [['$cid', `f${stream}`]])).length

const feed = await client.preparedFeedQuery(
  'SELECT conclusion_event_order AS n FROM conclusion_events_feed WHERE n > $last LIMIT $rows',
  [['$last', '0'], ['$rows', String(events)]],
)
console.log('following')
const positions = []
for (let data; (data = await feed.next()) !== null; ) {
  positions.push(...rows(data).map((row) => Number(row.n)))
}
const type = first.stream_type
console.log(JSON.stringify({ catalogs, schemas, tables, type, queried, prepared, positions }))
process.exit(0)
