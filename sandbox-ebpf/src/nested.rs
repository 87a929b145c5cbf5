//! What a file system does for a member whose request was judged already.
//!
//! An overlay answers a write by opening, copying and changing the files of its layers, in the context
//! of the task that asked. Their own places say nothing about the member: the place in the overlay
//! was judged, and an overlay that the policy does not know is refused altogether.

use crate::kernel::task;

/// Whether the kernel is doing this for itself.
///
/// While an overlay works on its layers it lends the task the credentials of whoever mounted it, with
/// `CAP_SYS_ADMIN` (`ovl_override_creds`). No member can lend itself such: it has no `CAP_SYS_ADMIN`,
/// and what `io_uring` and a core dump lend are a member's own. For a member that kept that
/// capability nothing counts as nested, and the places of the layers decide. In a user namespace of its
/// own a member has it, and threads of `io_uring` may be lent it; that is not the initial namespace.
#[inline(always)]
pub(crate) fn is_nested() -> bool {
    task::used_capabilities() & !task::own_capabilities() & task::CAP_SYS_ADMIN != 0
        && task::uses_initial_namespace()
}
