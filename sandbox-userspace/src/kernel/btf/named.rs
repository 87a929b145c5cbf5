//! Finding types by their names.

/// Where what is looked for by name is found: every start asks some two hundred times, and a kernel has a
/// hundred thousand types. Buckets are made faster than a sorted list, and every start makes them.
#[derive(Debug)]
pub(super) struct Named {
    /// First of each bucket's chain, an id; 0, `void`, ends one.
    first: Vec<u32>,
    /// By id, what comes next in its chain.
    next: Vec<u32>,
}

impl Named {
    /// Nothing, where so many types are known. There are as many buckets, at the least.
    pub(super) fn with(types: usize) -> Self {
        Self { first: vec![0; types.next_power_of_two()], next: vec![0; types] }
    }

    fn bucket(&self, text: &[u8]) -> usize {
        hash(text) as usize & (self.first.len() - 1)
    }

    /// Adds a type that is known under its name, which ends with the text or at a zero.
    pub(super) fn add(&mut self, name: &[u8], id: u32) {
        let bucket = self.bucket(name);
        self.next[id as usize] = std::mem::replace(&mut self.first[bucket], id);
    }

    /// Ids of whatever shares the bucket of a name, the last first.
    pub(super) fn alike(&self, name: &[u8]) -> impl Iterator<Item = u32> {
        let step = |id: u32| Some(id).filter(|id| *id != 0);
        let first = step(self.first[self.bucket(name)]);
        std::iter::successors(first, move |id| step(self.next[*id as usize]))
    }
}

/// Of a name, which ends with the text or at a zero; eight bytes at a time.
fn hash(text: &[u8]) -> u32 {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    let (chunks, last) = text.as_chunks::<8>();
    let mut end = [0; 8];
    end[..last.len()].copy_from_slice(last);
    let mut hash = 0_u64;
    for chunk in chunks.iter().chain([&end]) {
        let bytes = u64::from_le_bytes(*chunk);
        // The lowest bit that is set is the highest one of the first byte that is zero.
        let zero = bytes.wrapping_sub(LOW) & !bytes & (LOW << 7);
        let kept = if zero == 0 {
            bytes
        } else {
            bytes & ((zero & zero.wrapping_neg()) >> 7).wrapping_sub(1)
        };
        // An odd number without pattern (of the golden ratio). The higher bits are the better mixed ones.
        hash = (hash.rotate_left(32) ^ kept).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if zero != 0 {
            break;
        }
    }
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_follows_a_name_does_not_count(name in "[a-z_]{0,40}", behind in any::<Vec<u8>>()) {
            let text = [name.as_bytes(), &[0], &behind].concat();
            prop_assert_eq!(hash(&text), hash(name.as_bytes()));
        }

        #[test]
        fn whatever_was_added_is_found_once(names in prop::collection::vec("[ab]{0,17}", 0..40)) {
            let mut named = Named::with(names.len() + 1);
            for (name, id) in names.iter().zip(1..) {
                named.add(name.as_bytes(), id);
            }
            for (name, id) in names.iter().zip(1_u32..) {
                let found = named.alike(name.as_bytes()).filter(|found| *found == id).count();
                prop_assert_eq!(found, 1);
            }
        }
    }

    #[test]
    fn names_that_differ_in_one_byte_do_not_share_a_hash() {
        for length in 1..40 {
            let name = vec![b'a'; length];
            for at in 0..length {
                let mut other = name.clone();
                other[at] = b'b';
                assert_ne!(hash(&name), hash(&other), "{length} {at}");
            }
            assert_ne!(hash(&name), hash(&name[1..]), "{length}");
        }
    }
}
