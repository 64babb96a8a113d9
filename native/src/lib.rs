//! The checks of recon-node that need only the event itself, for events as nearly all are.
//!
//! Python has all the rules. Here is a second way to the same answers, many at a time and without
//! the interpreter's lock: it says yes, or nothing, and then Python looks.

#![deny(unsafe_code)]

mod car;
mod cbor;
mod ed25519;
mod row;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use car::{Event, Payload};
use ed25519::Signature;
use row::Row;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Checks events.
#[pymodule]
mod recon_node_native {
    use super::*;

    #[pymodule_export]
    const __VERSION__: &str = env!("CARGO_PKG_VERSION");

    /// Return of each CAR what is in it, if it is a signed event without a capability, well-formed
    /// and with the right signature, else None.
    ///
    /// `signer_of` returns the Ed25519 key, of 32 bytes, and the DID that a protected header names;
    /// None if it names another kind, or anything is wrong or uncommon about it.
    ///
    /// An event is `(cid, payload_cid, did, init, prevs, header)`: `init` is the init event's CID,
    /// None in an init event, and `header` that of an init event, not decoded. All but the DID and
    /// the tuple of prevs are bytes.
    #[pyfunction]
    fn check<'py>(
        py: Python<'py>,
        cars: Vec<Bound<'py, PyBytes>>,
        signer_of: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let data: Vec<&[u8]> = cars.iter().map(|car| car.as_bytes()).collect();
        let events = py.detach(|| {
            guarded(&data, |data| data.iter().map(|car| car::read_event(car)).collect())
        });
        let signers = signers_of(&events, signer_of)?;
        let keys: Vec<Option<[u8; 32]>> = (events.iter())
            .map(|event| signers.get(event.as_ref()?.protected)?.as_ref().map(|(key, _)| *key))
            .collect();
        let right = py.detach(|| guarded(&events, |events| are_right(events, &keys)));
        let found = (events.iter().zip(right)).map(|(event, is_right)| match (event, is_right) {
            (Some(event), Some(())) => match &signers[event.protected] {
                Some((_, did)) => plain(py, event, did).map(Some),
                None => Ok(None),
            },
            _ => Ok(None),
        });
        PyList::new(py, found.collect::<PyResult<Vec<_>>>()?)
    }

    /// Return of each CAR what is in it, if it is a signed event and well-formed, else None.
    /// Neither the signature nor the protected header is looked at.
    ///
    /// An event is `(cid, payload_cid, protected, signature, payload, init, prev)`, all of them
    /// bytes. `payload` is the block; but if that has no more than an init event's CID, one prev
    /// and data, these are `init`, `prev` and `payload`. Else `init` and `prev` are None.
    #[pyfunction]
    fn read<'py>(py: Python<'py>, cars: Vec<Bound<'py, PyBytes>>) -> PyResult<Bound<'py, PyList>> {
        let data: Vec<&[u8]> = cars.iter().map(|car| car.as_bytes()).collect();
        let events = guarded(&data, |data| data.iter().map(|car| car::read_event(car)).collect());
        let read =
            events.iter().map(|event| event.as_ref().map(|event| parts(py, event)).transpose());
        PyList::new(py, read.collect::<PyResult<Vec<_>>>()?)
    }

    /// Tell of each row of a node's log whether its CAR is a signed event and well-formed, and the
    /// row is that of the event. Neither the signature nor the protected header is looked at.
    ///
    /// The columns may have anything in them; then the row is not one.
    #[pyfunction]
    fn fit(
        py: Python<'_>,
        event_ids: Vec<Bound<'_, PyAny>>,
        cids: Vec<Bound<'_, PyAny>>,
        inits: Vec<Bound<'_, PyAny>>,
        kinds: Vec<Bound<'_, PyAny>>,
        cars: Vec<Bound<'_, PyAny>>,
    ) -> Vec<bool> {
        let row = |at: usize| {
            let [event_id, cid, init, car] =
                [&event_ids, &cids, &inits, &cars].map(|column| bytes_in(column.get(at)));
            let kind = kinds.get(at)?.cast::<PyString>().ok()?.to_str().ok()?;
            Some(Row { event_id: event_id?, cid: cid?, init: init?, kind, car: car? })
        };
        let rows: Vec<Option<Row>> = (0..cars.len()).map(row).collect();
        let fit = py.detach(|| {
            guarded(&rows, |rows| rows.iter().map(|row| row.as_ref()?.fits()).collect())
        });
        fit.iter().map(Option::is_some).collect()
    }

    /// Tell of each signature whether it is right: `signatures` are tuples of a key, the signature
    /// and the message. For tests.
    #[pyfunction]
    fn verify(py: Python<'_>, signatures: Vec<([u8; 32], [u8; 64], Vec<u8>)>) -> Vec<bool> {
        let signatures: Vec<Signature> = signatures
            .into_iter()
            .map(|(key, bytes, message)| Signature { key, bytes, message })
            .collect();
        py.detach(|| ed25519::verify(&signatures))
    }
}

fn bytes_in<'a>(value: Option<&'a Bound<'_, PyAny>>) -> Option<&'a [u8]> {
    Some(value?.cast::<PyBytes>().ok()?.as_bytes())
}

/// Do some work on all of a list; nothing is found if it fails, which would be a bug.
fn guarded<A, B>(all: &[A], work: impl FnOnce(&[A]) -> Vec<Option<B>>) -> Vec<Option<B>> {
    catch_unwind(AssertUnwindSafe(|| work(all)))
        .unwrap_or_else(|_| all.iter().map(|_| None).collect())
}

type Signer<'py> = Option<([u8; 32], Bound<'py, PyString>)>;

fn signers_of<'a, 'py>(
    events: &[Option<Event<'a>>],
    signer_of: &Bound<'py, PyAny>,
) -> PyResult<HashMap<&'a [u8], Signer<'py>>> {
    let mut signers = HashMap::new();
    for event in events.iter().flatten() {
        if !signers.contains_key(event.protected) {
            let protected = PyBytes::new(signer_of.py(), event.protected);
            signers.insert(event.protected, signer_of.call1((protected,))?.extract()?);
        }
    }
    Ok(signers)
}

fn are_right(events: &[Option<Event>], keys: &[Option<[u8; 32]>]) -> Vec<Option<()>> {
    let mut texts: HashMap<&[u8], Vec<u8>> = HashMap::new();
    let claimed =
        |(event, key): (&Option<Event>, &Option<[u8; 32]>)| event.is_some() && key.is_some();
    let signatures: Vec<Signature> = (events.iter().zip(keys))
        .filter_map(|(event, key)| {
            let (event, key) = (event.as_ref()?, *key.as_ref()?);
            let mut message =
                texts.entry(event.protected).or_insert_with(|| base64url(event.protected)).clone();
            message.push(b'.');
            message.extend(base64url(event.payload_cid));
            Some(Signature { key, bytes: event.signature, message })
        })
        .collect();
    let mut right = ed25519::verify(&signatures).into_iter();
    let mut is_right = |each| claimed(each) && right.next().unwrap_or(false);
    events.iter().zip(keys).map(|each| is_right(each).then_some(())).collect()
}

fn base64url(data: &[u8]) -> Vec<u8> {
    let digit = |bits: u32| BASE64[bits as usize & 63];
    let mut text = Vec::with_capacity(data.len() * 4 / 3 + 3);
    for part in data.chunks(3) {
        let byte = |at| u32::from(*part.get(at).unwrap_or(&0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digits = [digit(bits >> 18), digit(bits >> 12), digit(bits >> 6), digit(bits)];
        text.extend_from_slice(&digits[..=part.len()]);
    }
    text
}

fn plain<'py>(
    py: Python<'py>,
    event: &Event,
    did: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyTuple>> {
    let bytes = |data: &[u8]| PyBytes::new(py, data);
    let (init, prevs, header) = match &event.payload {
        Payload::Init(header) => (None, [].as_slice(), Some(bytes(header))),
        Payload::Data(init, prevs) => (Some(bytes(init)), prevs.as_slice(), None),
    };
    let prevs = PyTuple::new(py, prevs.iter().map(|prev| bytes(prev)))?;
    (bytes(event.cid), bytes(event.payload_cid), did, init, prevs, header).into_pyobject(py)
}

fn parts<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyTuple>> {
    let bytes = |data: &[u8]| PyBytes::new(py, data);
    let (payload, init, prev) = match &event.payload {
        Payload::Data(init, prevs) if !event.has_more => {
            (event.data, Some(bytes(init)), Some(bytes(prevs[0])))
        }
        _ => (event.block, None, None),
    };
    let (cid, payload_cid) = (bytes(event.cid), bytes(event.payload_cid));
    let (protected, signature) = (bytes(event.protected), bytes(&event.signature));
    (cid, payload_cid, protected, signature, bytes(payload), init, prev).into_pyobject(py)
}
