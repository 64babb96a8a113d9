//! Rows of a node's log, which must be those of the events in their CARs.

use crate::car::{self, Payload};

/// What every EventId starts with (CIP-124), and where the bytes of its stream may start.
const EVENT_ID_PREFIX: &[u8] = &[0xce, 1, 5];
const STREAM_OFFSET: usize = 20;
/// Bytes of the stream in an EventId, the last of its init event's CID.
const STREAM_SIZE: usize = 4;

/// A row, as slices of its columns.
pub struct Row<'a> {
    pub event_id: &'a [u8],
    pub cid: &'a [u8],
    pub init: &'a [u8],
    pub kind: &'a str,
    pub car: &'a [u8],
}

impl Row<'_> {
    /// Return something if the CAR has a signed event, and the row is that event's.
    pub fn fits(&self) -> Option<()> {
        let event = car::read_event(self.car)?;
        let (kind, init) = match event.payload {
            Payload::Init(_) => ("init", event.cid),
            Payload::Data(init, _) => ("data", init),
        };
        let stream = &init[init.len() - STREAM_SIZE..];
        let before_cid = self.event_id.strip_suffix(event.cid)?;
        let names_stream =
            before_cid.get(STREAM_OFFSET..)?.windows(STREAM_SIZE).any(|four| four == stream);
        let is_same = (self.cid, self.init, self.kind) == (event.cid, init, kind);
        (is_same && names_stream && before_cid.starts_with(EVENT_ID_PREFIX)).then_some(())
    }
}
