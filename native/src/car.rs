//! Signed events as nearly all are: a CAR with an envelope and a payload, each once, and no more.
//!
//! `read_event` returns None for anything else, be it right or wrong: Python looks at that.

use sha2::{Digest, Sha256};

use crate::cbor::Reader;

/// Bytes of an event.
const MAX_CAR: usize = 1_000_000;
/// Bytes of a protected header and of an init event's header, and prevs of an event, that are looked
/// at here. Both headers are decoded in Python.
const MAX_PROTECTED: usize = 1024;
const MAX_HEADER: usize = 2048;
const MAX_PREVS: usize = 16;

const BYTES: u8 = 2;
const LIST: u8 = 4;
const MAP: u8 = 5;

/// The header of a CAR before and after its root.
const BEFORE_ROOT: &[u8] = b"\x3b\xa2\x65roots\x81\xd8\x2a\x58\x26\x00";
const AFTER_ROOT: &[u8] = b"\x67version\x01";
const ROOT_HEAD: &[u8] = &[1, 0x85, 1, 0x12, 32];
const ROOT_SIZE: usize = ROOT_HEAD.len() + 32;
const PAYLOAD_HEAD: &[u8] = &[1, 0x71, 0x12, 32];
const PAYLOAD_SIZE: usize = PAYLOAD_HEAD.len() + 32;

/// An envelope before the payload's CID, between it and the protected header, and after that.
const BEFORE_PAYLOAD: &[u8] = b"\xa2\x67payload\x58\x24";
const BEFORE_PROTECTED: &[u8] = b"\x6asignatures\x81\xa2\x69protected";
const BEFORE_SIGNATURE: &[u8] = b"\x69signature\x58\x40";

/// An event, as slices of its CAR.
pub struct Event<'a> {
    pub cid: &'a [u8],
    pub payload_cid: &'a [u8],
    pub protected: &'a [u8],
    pub signature: [u8; 64],
    pub payload: Payload<'a>,
    /// The payload, encoded, and its data.
    pub block: &'a [u8],
    pub data: &'a [u8],
    /// Whether it has a header, or a list of prevs.
    pub has_more: bool,
}

pub enum Payload<'a> {
    /// The header of an init event, encoded.
    Init(&'a [u8]),
    /// The init event's CID and the prevs.
    Data(&'a [u8], Vec<&'a [u8]>),
}

pub fn read_event(car: &[u8]) -> Option<Event<'_>> {
    if car.len() > MAX_CAR {
        return None;
    }
    let mut reader = Reader::new(car);
    expect(&mut reader, BEFORE_ROOT)?;
    let root = reader.take(ROOT_SIZE)?;
    expect(&mut reader, AFTER_ROOT)?;
    let (mut envelope, mut payload) = (None, None);
    while !reader.is_at_end() {
        let size = read_varint(&mut reader)?;
        let section = reader.take(size)?;
        if envelope.is_none() && section.starts_with(root) {
            envelope = Some(&section[ROOT_SIZE..]);
        } else if payload.is_none() && section.starts_with(PAYLOAD_HEAD) {
            payload = section.split_at_checked(PAYLOAD_SIZE);
        } else {
            return None;
        }
    }
    let (envelope, (payload_cid, payload)) = (envelope?, payload?);
    if !is_block(root, ROOT_HEAD, envelope) || !is_block(payload_cid, PAYLOAD_HEAD, payload) {
        return None;
    }
    let (protected, signature) = read_envelope(envelope, payload_cid)?;
    let (fields, data, has_more) = read_payload(payload)?;
    let block = payload;
    let cid = root;
    Some(Event { cid, payload_cid, protected, signature, payload: fields, block, data, has_more })
}

fn expect(reader: &mut Reader, bytes: &[u8]) -> Option<()> {
    (reader.take(bytes.len())? == bytes).then_some(())
}

/// Read a varint in its shortest form, of at most three bytes.
fn read_varint(reader: &mut Reader) -> Option<usize> {
    let mut value = 0;
    for shift in [0, 7, 14] {
        let byte = reader.take(1)?[0];
        value |= usize::from(byte & 127) << shift;
        if byte < 128 {
            return (byte != 0 || shift == 0).then_some(value);
        }
    }
    None
}

fn is_block(cid: &[u8], head: &[u8], block: &[u8]) -> bool {
    cid.strip_prefix(head) == Some(Sha256::digest(block).as_slice())
}

fn read_envelope<'a>(envelope: &'a [u8], payload_cid: &[u8]) -> Option<(&'a [u8], [u8; 64])> {
    let mut reader = Reader::new(envelope);
    expect(&mut reader, BEFORE_PAYLOAD)?;
    expect(&mut reader, payload_cid)?;
    expect(&mut reader, BEFORE_PROTECTED)?;
    let size = reader.expect(BYTES).filter(|size| *size <= MAX_PROTECTED)?;
    let protected = reader.take(size)?;
    expect(&mut reader, BEFORE_SIGNATURE)?;
    let signature = reader.take(64)?.try_into().ok()?;
    reader.is_at_end().then_some((protected, signature))
}

fn read_payload(payload: &[u8]) -> Option<(Payload<'_>, &[u8], bool)> {
    let mut reader = Reader::new(payload);
    let count = reader.expect(MAP)?;
    let (mut header, mut init, mut prevs, mut data) = (None, None, Vec::new(), None);
    let mut has_more = false;
    reader.entries(count, |reader, key| {
        let start = reader.at;
        match key {
            b"id" => init = Some(event_link(reader)?),
            b"prev" => {
                has_more |= payload.get(start)? >> 5 == LIST;
                prevs = read_prevs(reader)?;
            }
            b"data" => {
                reader.skip(1)?;
                data = Some(&payload[start..reader.at]);
            }
            b"header" => {
                has_more = true;
                reader.skip(1)?;
                header =
                    Some(&payload[start..reader.at]).filter(|header| header.len() <= MAX_HEADER);
            }
            _ => return None,
        }
        Some(())
    })?;
    if !reader.is_at_end() {
        return None;
    }
    let fields = match (header, init, prevs.is_empty()) {
        (Some(header), None, true) => Payload::Init(header),
        (_, Some(init), false) if header.is_none_or(is_data_header) => Payload::Data(init, prevs),
        _ => return None,
    };
    Some((fields, data?, has_more))
}

/// Tell whether the header of a data event has none but the fields that it may have.
fn is_data_header(header: &[u8]) -> bool {
    let mut reader = Reader::new(header);
    let count = reader.expect(MAP);
    let found = count.and_then(|count| {
        reader.entries(count, |reader, key| match key {
            b"shouldIndex" => matches!(reader.take(1)?, [0xf4 | 0xf5]).then_some(()),
            b"modelVersion" => reader.link().map(|_| ()),
            _ => None,
        })
    });
    found.is_some()
}

fn read_prevs<'a>(reader: &mut Reader<'a>) -> Option<Vec<&'a [u8]>> {
    if reader.data.get(reader.at)? >> 5 != LIST {
        return Some(vec![event_link(reader)?]);
    }
    let count = reader.expect(LIST).filter(|count| (1..=MAX_PREVS).contains(count))?;
    let prevs: Vec<&[u8]> = (0..count).map(|_| event_link(reader)).collect::<Option<_>>()?;
    let is_twice = |at: usize| prevs[..at].contains(&prevs[at]);
    (!(0..count).any(is_twice)).then_some(prevs)
}

fn event_link<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    reader.link().filter(|cid| cid.starts_with(ROOT_HEAD) || cid.starts_with(PAYLOAD_HEAD))
}
