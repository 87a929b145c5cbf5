//! Names in directories that compare them without regard to case.
//!
//! There the kernel's name of an object is as typed by whoever looked it up first: `.ENV` opens `.env`.
//! So for such directories the compiler enters every edge a second time, over the folded name, and the
//! kernel side folds the name that it reads. Folding is exact for ASCII only; what a file system does
//! beyond that (Unicode, code pages, short names) is not followed but denied, where rules speak of
//! something in the directory.

/// Bit in an edge key's `node` that marks the edges over folded names.
pub const FOLDED: u32 = 1 << 31;

/// Name of the folded edge that a node has where a name beneath it is not ASCII: no folded name is like
/// it. Then no name in such a directory can be told from that one.
pub const INEXACT: u8 = 0xff;

/// Id of the node that a folded edge leads to where no verdict can be given: [`INEXACT`], and names that
/// differ in nothing but case. No node has it.
pub const NO_NODE: u32 = 0;

const HIGH: u64 = every(0x80);

const fn every(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Eight bytes of a name with `A` to `Z` made small. Of bytes that are not ASCII the result means
/// nothing.
#[inline(always)]
pub const fn lower(word: u64) -> u64 {
    // In each byte bit 7 tells: at least `A`; behind `Z`. Nothing is carried, as no byte has bit 7 yet.
    let from_a = word.wrapping_add(every(0x80 - b'A'));
    let past_z = word.wrapping_add(every(0x80 - b'Z' - 1));
    word | (from_a & !past_z & HIGH) >> 2
}

/// Not 0 where one of eight bytes is not ASCII.
#[inline(always)]
pub const fn beyond_ascii(word: u64) -> u64 {
    word & HIGH
}

/// Not 0 where one of eight bytes is a tilde, as short names of FAT and NTFS have.
#[inline(always)]
pub const fn tilde(word: u64) -> u64 {
    let zero = word ^ every(b'~');
    zero.wrapping_sub(every(1)) & !zero & HIGH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_is_ascii_lower_case() {
        for byte in 0..=127_u8 {
            for other in [0, b'A', b'Z', b'z', 127] {
                let bytes = [byte, other, byte, byte, other, byte, other, byte];
                let folded = lower(u64::from_ne_bytes(bytes)).to_ne_bytes();
                assert_eq!(folded, bytes.map(|byte| byte.to_ascii_lowercase()));
            }
        }
    }

    #[test]
    fn bytes_are_found_wherever_they_are() {
        for byte in 0..=255_u8 {
            for place in 0..8 {
                for rest in [0, b'a', 0x7d, 0x7f] {
                    let mut bytes = [rest; 8];
                    bytes[place] = byte;
                    let word = u64::from_ne_bytes(bytes);
                    assert_eq!(beyond_ascii(word) != 0, byte > 127);
                    assert_eq!(tilde(word) != 0, byte == b'~', "{bytes:?}");
                }
            }
        }
    }
}
