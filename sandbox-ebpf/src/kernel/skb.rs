//! `struct sk_buff`.

use super::read;
use crate::layout::LAYOUT;
use aya_ebpf::bindings::__sk_buff;

/// Of `skb_shared_info.flags`, linux/skbuff.h: `SKBFL_ZEROCOPY_ENABLE`, `SKBFL_SHARED_FRAG`, `SKBFL_PURE_ZEROCOPY`,
/// `SKBFL_MANAGED_FRAG_REFS`.
const OF_OTHERS: u8 = 1 | 2 | 4 | 16;

/// Whether what a packet holds may lie in pages that somebody else has too and may change: those of a file
/// (sendfile, splice) or of a program (`MSG_ZEROCOPY`). What cannot be read may.
#[inline(always)]
pub(crate) fn is_shared(skb: *mut __sk_buff) -> bool {
    // The number of the pointer, read back from memory: arithmetic on a context is refused.
    let place = skb;
    let Some(skb) = read::<u64>((&raw const place) as u64) else { return true };
    let Some(head) = read::<u64>(skb + LAYOUT.skb_head.get() as u64) else { return true };
    let Some(end) = read::<u32>(skb + LAYOUT.skb_end.get() as u64) else { return true };
    let flags = read::<u8>(head + u64::from(end) + LAYOUT.shared_flags.get() as u64);
    flags.is_none_or(|flags| flags & OF_OTHERS != 0)
}
