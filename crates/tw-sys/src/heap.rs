//! The allocator (mimalloc), where it must not decide by itself.

/// Gives memory that is not in use back to the system: what this thread has freed of its own, and whatever nobody has any
/// more. May take milliseconds.
///
/// Left alone, the allocator does that a second later, on the thread that happens to ask it for memory then: a loop.
pub fn give_back() {
    // SAFETY: it takes no pointer, and may be called on any thread at any time, whichever allocator the program uses.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn giving_back_leaves_what_is_in_use() {
        let kept = vec![7_u8; 1 << 20];
        drop(vec![8_u8; 1 << 20]);
        give_back();
        assert!(kept.iter().all(|byte| *byte == 7));
    }
}
