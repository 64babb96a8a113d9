//! Ed25519 signatures, many at once: true for exactly those that libsodium accepts one by one.
//!
//! libsodium (`crypto_sign_verify_detached`) recomputes R = sB - hA and compares its bytes. It also
//! refuses s >= L, keys that are not in canonical form, and keys and R of small order.
//!
//! Of many signatures, the sum of z_i (R_i + h_i A_i - s_i B) is computed, for random z_i of 128
//! bits. If one is wrong, this sum is not zero but by a chance of 2^-128, unless R or A has a part
//! of small order (*torsion*), which the sum may lose by a chance of 1/2. So R and A must be free
//! of it: 64 random subsets of them are summed up, and a point with torsion shows in each of these
//! sums by a chance of 1/2. If anything is wrong with the batch, each signature is checked alone,
//! as libsodium does.

use std::collections::HashMap;

use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::{Identity, IsIdentity, VartimeMultiscalarMul};
use sha2::{Digest, Sha512};

/// Fewer signatures are checked faster alone: a batch has to find out about 64 sums.
const MIN_BATCH: usize = 96;
/// How many subsets are summed up to find torsion, at least.
const SUMS: usize = 64;
/// How many of these sums are made at once.
const BITS: usize = 6;

pub struct Signature {
    pub key: [u8; 32],
    /// R and s.
    pub bytes: [u8; 64],
    pub message: Vec<u8>,
}

/// A signature whose parts are well-formed.
struct Claim {
    r_bytes: [u8; 32],
    r: EdwardsPoint,
    s: Scalar,
    h: Scalar,
    /// Index of the key.
    key: usize,
}

/// Tell of each signature whether it is right.
pub fn verify(signatures: &[Signature]) -> Vec<bool> {
    let mut keys: Vec<EdwardsPoint> = Vec::new();
    let mut known: HashMap<[u8; 32], Option<usize>> = HashMap::new();
    let claims: Vec<Option<Claim>> = signatures
        .iter()
        .map(|each| {
            let key = *known.entry(each.key).or_insert_with(|| {
                keys.push(read_point(&each.key)?);
                Some(keys.len() - 1)
            });
            read_claim(each, key?)
        })
        .collect();
    let whole: Vec<&Claim> = claims.iter().flatten().collect();
    let all_right = whole.len() >= MIN_BATCH && are_all_right(&whole, &keys) == Some(true);
    let is_right = |claim: &Claim| all_right || is_right_alone(claim, &keys[claim.key]);
    claims.iter().map(|each| each.as_ref().is_some_and(is_right)).collect()
}

/// Read a point that is in canonical form and not of small order.
fn read_point(bytes: &[u8; 32]) -> Option<EdwardsPoint> {
    let is_canonical =
        bytes[0] < 0xed || bytes[31] & 0x7f != 0x7f || bytes[1..31].iter().any(|b| *b != 0xff);
    if !is_canonical {
        return None;
    }
    CompressedEdwardsY(*bytes).decompress().filter(|point| !point.is_small_order())
}

fn read_claim(signature: &Signature, key: usize) -> Option<Claim> {
    let (r_bytes, s_bytes) = signature.bytes.split_at(32);
    let r_bytes: [u8; 32] = r_bytes.try_into().ok()?;
    let s = Option::from(Scalar::from_canonical_bytes(s_bytes.try_into().ok()?))?;
    let r = read_point(&r_bytes)?;
    let hash = Sha512::new()
        .chain_update(r_bytes)
        .chain_update(signature.key)
        .chain_update(&signature.message);
    let h = Scalar::from_bytes_mod_order_wide(&hash.finalize().into());
    Some(Claim { r_bytes, r, s, h, key })
}

fn is_right_alone(claim: &Claim, key: &EdwardsPoint) -> bool {
    EdwardsPoint::vartime_double_scalar_mul_basepoint(&claim.h, &-key, &claim.s).compress().0
        == claim.r_bytes
}

/// Tell whether all are right; None if there is no randomness to be had.
fn are_all_right(claims: &[&Claim], keys: &[EdwardsPoint]) -> Option<bool> {
    let mut random = Random::new()?;
    let mut scalars = vec![Scalar::ZERO; keys.len()];
    let mut base = Scalar::ZERO;
    for claim in claims {
        let z = random.odd_scalar();
        base -= z * claim.s;
        scalars[claim.key] += z * claim.h;
        scalars.push(z);
    }
    scalars.push(base);
    let mut points = keys.to_vec();
    points.extend(claims.iter().map(|claim| claim.r));
    if has_torsion(&points, &mut random) {
        return Some(false);
    }
    points.push(ED25519_BASEPOINT_POINT);
    Some(EdwardsPoint::vartime_multiscalar_mul(&scalars, &points).is_identity())
}

/// Tell whether one of some points has a part of small order.
///
/// Each point gets a random number, and is in the sum of each bit that this number has: so one
/// addition a point makes `BITS` sums, but for those that put points of the same number together.
fn has_torsion(points: &[EdwardsPoint], random: &mut Random) -> bool {
    let below_order = Scalar::ZERO - Scalar::ONE;
    let times_order = |sum: &EdwardsPoint| {
        EdwardsPoint::vartime_double_scalar_mul_basepoint(&below_order, sum, &Scalar::ZERO) + sum
    };
    (0..SUMS.div_ceil(BITS)).any(|_| {
        let mut by_number = [EdwardsPoint::identity(); 1 << BITS];
        for some in points.chunks(64) {
            for (point, number) in some.iter().zip(random.bytes()) {
                by_number[usize::from(number) % (1 << BITS)] += point;
            }
        }
        (0..BITS).rev().any(|bit| {
            let (without, with) = by_number[..2 << bit].split_at_mut(1 << bit);
            let sum = with.iter().fold(EdwardsPoint::identity(), |sum, point| sum + point);
            without.iter_mut().zip(with).for_each(|(lower, point)| *lower += &*point);
            !times_order(&sum).is_identity()
        })
    })
}

/// Numbers that nobody can foresee.
struct Random {
    seed: [u8; 32],
    count: u64,
}

impl Random {
    fn new() -> Option<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).ok()?;
        Some(Self { seed, count: 0 })
    }

    fn bytes(&mut self) -> [u8; 64] {
        self.count += 1;
        Sha512::new()
            .chain_update(self.seed)
            .chain_update(self.count.to_le_bytes())
            .finalize()
            .into()
    }

    /// A number of 128 bits, not zero.
    fn odd_scalar(&mut self) -> Scalar {
        let bytes = self.bytes();
        let mut half = [0; 16];
        half.copy_from_slice(&bytes[..16]);
        Scalar::from(u128::from_le_bytes(half) | 1)
    }
}
