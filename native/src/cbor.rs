//! DAG-CBOR, walked and not decoded: true only for blocks that are strict beyond doubt.
//!
//! What is refused here may still be strict, and is decoded in Python: nesting beyond `MAX_DEPTH`,
//! integers below -2^63, and links other than CIDv1 by sha2-256 with one of three codecs.

/// Levels of lists and maps. The limit for events is 127.
const MAX_DEPTH: usize = 100;

const LINK: [u8; 3] = [0xd8, 42, 0x58];
/// Codecs with one byte (DAG-CBOR, raw), and with two (DAG-JOSE), and the hash sha2-256.
const HEADS: [&[u8]; 3] = [&[1, 0x71, 0x12, 32], &[1, 0x55, 0x12, 32], &[1, 0x85, 1, 0x12, 32]];

pub struct Reader<'a> {
    pub data: &'a [u8],
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.data.len()
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.data.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    /// Read the major type and the argument, which must be in its shortest form.
    pub fn head(&mut self) -> Option<(u8, u64)> {
        let first = self.take(1)?[0];
        let (size, least) = match first & 31 {
            small @ 0..24 => return Some((first >> 5, u64::from(small))),
            24 => (1, 24),
            25 => (2, 1 << 8),
            26 => (4, 1 << 16),
            27 => (8, 1 << 32),
            _ => return None,
        };
        let value = self.take(size)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        (value >= least).then_some((first >> 5, value))
    }

    /// Read the head of a value that must be of this major type, and return its argument.
    pub fn expect(&mut self, major: u8) -> Option<usize> {
        let (found, value) = self.head()?;
        if found == major { value.try_into().ok() } else { None }
    }

    /// Read a link and return its CID.
    pub fn link(&mut self) -> Option<&'a [u8]> {
        if self.take(LINK.len())? != LINK {
            return None;
        }
        let size = usize::from(self.take(1)?[0]);
        let cid = self.take(size)?.strip_prefix(&[0])?;
        HEADS
            .iter()
            .any(|head| cid.starts_with(head) && cid.len() == head.len() + 32)
            .then_some(cid)
    }

    /// Walk over one value.
    pub fn skip(&mut self, depth: usize) -> Option<()> {
        let start = self.at;
        match self.data.get(start)? {
            0xf4..=0xf6 => {
                self.at += 1;
                return Some(());
            }
            0xfb => {
                self.at += 1;
                let float = f64::from_be_bytes(self.take(8)?.try_into().ok()?);
                return float.is_finite().then_some(());
            }
            _ => (),
        }
        let (major, value) = self.head()?;
        let count: usize = value.try_into().ok()?;
        match major {
            0 => Some(()),
            1 => (value < 1 << 63).then_some(()),
            2 => self.take(count).map(|_| ()),
            3 => self.text(count).map(|_| ()),
            4 if depth < MAX_DEPTH => (0..count).try_for_each(|_| self.skip(depth + 1)),
            5 if depth < MAX_DEPTH => self.entries(count, |reader, _| reader.skip(depth + 1)),
            6 => {
                self.at = start;
                self.link().map(|_| ())
            }
            _ => None,
        }
    }

    /// Read the entries of a map: each key, which must come after the one before it, and the value.
    pub fn entries(
        &mut self,
        count: usize,
        mut read: impl FnMut(&mut Self, &'a [u8]) -> Option<()>,
    ) -> Option<()> {
        let mut last: Option<&[u8]> = None;
        for _ in 0..count {
            let size = self.expect(3)?;
            let key = self.text(size)?;
            if last.is_some_and(|last| (last.len(), last) >= (key.len(), key)) {
                return None;
            }
            last = Some(key);
            read(self, key)?;
        }
        Some(())
    }

    fn text(&mut self, size: usize) -> Option<&'a [u8]> {
        let text = self.take(size)?;
        std::str::from_utf8(text).is_ok().then_some(text)
    }
}
