use tw_testkit::Random;

use super::*;

fn subject<'a>(text: &'a str, tags: &'a [Tag]) -> Subject<'a> {
    Subject { key: Key::of(text.as_bytes()), text: text.as_bytes(), tags }
}

fn verdict(purges: &Purges, sequence: u64, text: &str) -> Option<Purge> {
    match purges.verdict(sequence, &subject(text, &[])) {
        Verdict::Kept(checked) => {
            assert!(checked >= sequence);
            None
        }
        Verdict::Purged(purge) => Some(purge),
    }
}

#[test]
fn purge_covers_older_entries_only() {
    let purges = Purges::new(1000);
    let before = purges.sequence().next();
    assert_eq!(purges.verdict(before, &subject("/a/1", &[])), Verdict::Kept(before));
    purges.purge_prefix(b"/a", Purge::Soft);
    let between = purges.sequence().next();
    let latest = purges.purge_prefix(b"/a/", Purge::Hard);
    let after = purges.sequence().next();
    for (sequence, text, expected) in [
        (before, "/a", Some(Purge::Soft)),
        (before, "/a/1", Some(Purge::Hard)),
        (before, "/b", None),
        (before, "/", None),
        (between, "/a", None),
        (between, "/a/1", Some(Purge::Hard)),
        (after, "/a/1", None),
    ] {
        assert_eq!(verdict(&purges, sequence, text), expected, "{sequence} {text}");
    }
    // The verdict has the latest number, so that an entry that is not concerned is not checked again.
    assert_eq!(purges.verdict(before, &subject("/b", &[])), Verdict::Kept(latest));
}

#[test]
fn tags_and_keys_are_purged_one_by_one() {
    let purges = Purges::new(1000);
    let sequence = purges.sequence().next();
    let tags = [Tag::of(b"red"), Tag::of(b"blue")];
    purges.purge_tag(tags[1], Purge::Soft);
    purges.purge_key(Key::of(b"/x"), Purge::Hard);
    let verdict = |text, tags| purges.verdict(sequence, &subject(text, tags));
    assert_eq!(verdict("/", &tags[..]), Verdict::Purged(Purge::Soft));
    assert_eq!(verdict("/", &tags[..1]), Verdict::Kept(purges.latest()));
    assert_eq!(verdict("/x", &[]), Verdict::Purged(Purge::Hard));
    // A soft purge after a hard one takes nothing back.
    purges.purge_key(Key::of(b"/x"), Purge::Soft);
    assert_eq!(verdict("/x", &[]), Verdict::Purged(Purge::Hard));
}

/// Every purge that was given, looked through one by one.
#[derive(Default)]
struct Model {
    prefixes: Vec<(Vec<u8>, PurgeEffect)>,
}

impl Model {
    fn of(&self, text: &[u8]) -> PurgeEffect {
        let those = self.prefixes.iter().filter(|(prefix, _)| text.starts_with(prefix));
        those.fold(PurgeEffect::default(), |all, (_, cut)| all.and(*cut))
    }
}

fn text(random: &mut Random, len: usize) -> Vec<u8> {
    (0..random.below(len)).map(|_| random.one_of(b"ab/")).collect()
}

#[test]
fn prefix_search_equals_a_linear_walk() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let mut list = Prefixes::default();
        let mut model = Model::default();
        for sequence in 1..400 {
            let purge = if random.happens(50) { Purge::Hard } else { Purge::Soft };
            let prefix = text(&mut random, 12);
            let cut = PurgeEffect::of(purge, sequence);
            list.add(&prefix, cut);
            model.prefixes.push((prefix, cut));
            if random.happens(2) {
                let oldest = sequence / 2;
                list.forget(oldest);
                model.prefixes.iter_mut().for_each(|(_, cut)| *cut = cut.forget(oldest));
            }
            for _ in 0..5 {
                let text = text(&mut random, 14);
                let is = list.of(&text);
                let expected = model.of(&text);
                for began in 0..=sequence {
                    assert_eq!(is.purges(began), expected.purges(began), "seed {seed}, {text:?} {is:?}");
                }
            }
        }
        assert!(list.rows_are_sorted() && list.len() < 400);
    }
}

#[test]
fn surplus_prefixes_merge_into_wider_ones() {
    let mut random = Random::new(7);
    let mut list = Prefixes::default();
    let mut model = Model::default();
    for sequence in 1..3 * PREFIXES_MAX as u64 {
        let purge = if random.happens(50) { Purge::Hard } else { Purge::Soft };
        // The prefixes are not so short that one purges all others.
        let mut prefix = text(&mut random, 40);
        let cut = PurgeEffect::of(purge, sequence);
        prefix.resize(prefix.len().max(10), b'c');
        list.add(&prefix, cut);
        model.prefixes.push((prefix, cut));
        assert!(list.len() <= PREFIXES_MAX);
    }
    assert!(list.len() > PREFIXES_MAX / 2, "{}", list.len());
    for _ in 0..2000 {
        let text = text(&mut random, 44);
        let is = list.of(&text);
        let least = model.of(&text);
        assert!(is.hard >= least.hard && is.soft.max(is.hard) >= least.soft, "{is:?} {least:?}");
    }
    // A prefix far from all others is not merged.
    let mut list = Prefixes::default();
    list.add(b"far", PurgeEffect::of(Purge::Hard, 1));
    for number in 0..2 * PREFIXES_MAX as u64 {
        list.add(format!("near/{number:06}").as_bytes(), PurgeEffect::of(Purge::Hard, 2 + number));
    }
    assert_eq!((list.of(b"far").hard, list.of(b"fa").hard, list.of(b"near").hard), (1, 0, 0));
    let last = 2 * PREFIXES_MAX as u64 - 1;
    assert!(list.of(format!("near/{last:06}").as_bytes()).hard >= 2 + last);
}

#[test]
fn long_prefix_is_truncated() {
    let purges = Purges::new(1000);
    let sequence = purges.sequence().next();
    let long = "x".repeat(PREFIX_SIZE_MAX + 10);
    purges.purge_prefix(long.as_bytes(), Purge::Hard);
    assert_eq!(verdict(&purges, sequence, &long), Some(Purge::Hard));
    assert_eq!(verdict(&purges, sequence, &long[..PREFIX_SIZE_MAX]), Some(Purge::Hard));
    assert_eq!(verdict(&purges, sequence, &long[..PREFIX_SIZE_MAX - 1]), None);
}

#[test]
fn surplus_tags_merge_into_a_purge_of_all_tagged_entries() {
    let purges = Purges::new(1000);
    let old = purges.sequence().next();
    let count = MARKS_MAX as u64 + 10;
    let mut young = 0;
    for number in 0..count {
        if number == MARKS_MAX as u64 {
            young = purges.sequence().next();
        }
        purges.purge_tag(Tag(number), Purge::Soft);
    }
    let of = |sequence, tags: &[Tag]| purges.verdict(sequence, &subject("/", tags));
    for number in 0..count {
        assert_eq!(of(old, &[Tag(number)]), Verdict::Purged(Purge::Soft));
    }
    // More is purged than was ordered, but neither entries without tags nor those younger than the old half.
    assert_eq!(of(old, &[Tag(count)]), Verdict::Purged(Purge::Soft));
    assert_eq!(of(old, &[]), Verdict::Kept(purges.latest()));
    assert_eq!(of(young, &[Tag(count)]), Verdict::Kept(purges.latest()));
    assert_eq!(of(young, &[Tag(count - 1)]), Verdict::Purged(Purge::Soft));
    assert!(purges.counts()[1] <= MARKS_MAX);
}

#[test]
fn obsolete_purges_are_forgotten() {
    let purges = Purges::new(1000);
    let sequence = purges.sequence().next();
    let first = purges.purge_prefix(b"/a", Purge::Hard);
    purges.purge_tag(Tag(1), Purge::Soft);
    let last = purges.purge_prefix(b"/b", Purge::Soft);
    purges.forget(first);
    assert_eq!(purges.counts(), [1, 1, 0]);
    assert_eq!((verdict(&purges, first, "/a"), verdict(&purges, first, "/b")), (None, Some(Purge::Soft)));
    assert_eq!(verdict(&purges, sequence, "/b"), Some(Purge::Hard));
    assert_eq!(purges.latest(), last);
    purges.forget(last);
    assert_eq!((purges.counts(), purges.latest()), ([0, 0, 0], last));
    // Entries with the latest number are kept without a look at the lists.
    assert_eq!(purges.verdict(last, &subject("/a", &[])), Verdict::Kept(last));
}

#[test]
fn entry_found_before_its_purge_was_forgotten_is_purged() {
    let purges = Purges::new(1000);
    // A request finds this entry, and waits for the disk that has its file.
    let found_value = purges.sequence().next();
    let purge = purges.purge_prefix(b"/a", Purge::Hard);
    // A sweep removes it meanwhile, and no purge needs to be remembered.
    purges.forget(purge);
    assert_eq!(purges.verdict(found_value, &subject("/a/1", &[])), Verdict::Purged(Purge::Hard));
    let later = purges.sequence().next();
    assert_eq!(purges.verdict(later, &subject("/a/1", &[])), Verdict::Kept(later));
}

fn many(random: &mut Random) -> Purges {
    let purges = Purges::new(1000);
    for _ in 0..200 {
        let purge = if random.happens(50) { Purge::Hard } else { Purge::Soft };
        purges.purge_prefix(&text(random, 12), purge);
        purges.purge_tag(Tag(random.below(50) as u64), purge);
        purges.purge_key(Key::of(&text(random, 4)), purge);
        purges.sequence().next();
    }
    purges.lists.lock().keys.add_floor(PurgeEffect { hard: 3, soft: 4 });
    purges
}

#[test]
fn purges_survive_a_restart() {
    let mut random = Random::new(3);
    let purges = many(&mut random);
    let file = purges.encode();
    let again = Purges::decode(&file, 1).unwrap();
    assert_eq!((again.counts(), again.latest()), (purges.counts(), purges.latest()));
    // The sequence grows even if the clock was set back.
    assert!(again.sequence().next() > purges.sequence().last());
    let latest = purges.latest();
    for _ in 0..2000 {
        let text = text(&mut random, 14);
        let tags = [Tag(random.below(60) as u64)];
        let sequence = latest - random.below(900) as u64;
        let subject = Subject { key: Key::of(&text), text: &text, tags: &tags };
        assert_eq!(again.verdict(sequence, &subject), purges.verdict(sequence, &subject));
    }
    assert_eq!(Purges::decode(&Purges::new(5).encode(), 5).unwrap().counts(), [0, 0, 0]);
}

#[test]
fn damaged_purge_file_is_an_error() {
    let file = many(&mut Random::new(4)).encode();
    assert_eq!(Purges::decode(b"", 1).unwrap_err(), PurgeFileError::NotOne);
    assert_eq!(Purges::decode(b"something else", 1).unwrap_err(), PurgeFileError::NotOne);
    assert_eq!(Purges::decode(&vec![0; PURGES_SIZE_MAX + 1], 1).unwrap_err(), PurgeFileError::TooLarge);
    let mut newer = file.clone();
    newer[8] = 3;
    assert_eq!(Purges::decode(&newer, 1).unwrap_err(), PurgeFileError::Version(3));
    for at in 0..file.len() {
        assert!(Purges::decode(&file[..at], 1).is_err(), "{at}");
        let mut broken = file.clone();
        broken[at] ^= 1 << (at % 8);
        assert!(Purges::decode(&broken, 1).is_err(), "{at}");
    }
}

#[test]
fn invalid_contents_with_a_valid_checksum_are_refused() {
    let file = many(&mut Random::new(5)).encode();
    let mut random = Random::new(6);
    for _ in 0..3000 {
        let mut broken = file[..file.len() - 4].to_vec();
        let at = 12 + random.below(broken.len() - 12);
        broken[at] = random.below(256) as u8;
        if random.happens(50) {
            broken.truncate(at);
        }
        broken.extend_from_slice(&crc32fast::hash(&broken).to_le_bytes());
        // A file that can be decoded has no more purges than its size allows, and lookups in it end.
        if let Ok(purges) = Purges::decode(&broken, 1) {
            assert!(purges.counts().iter().sum::<usize>() <= broken.len() / 16);
            let _ = purges.verdict(0, &subject("ab/ab", &[Tag(1)]));
        }
    }
}

#[test]
fn the_largest_file_can_be_read() {
    let purges = Purges::new(1000);
    for number in 0..MARKS_MAX as u64 {
        purges.purge_tag(Tag(number), Purge::Hard);
        purges.lists.lock().keys.add(number, PurgeEffect::of(Purge::Soft, 1));
    }
    let end = "x".repeat(PREFIX_SIZE_MAX - 5);
    for number in 0..PREFIXES_MAX {
        purges.purge_prefix(format!("{number:05}{end}").as_bytes(), Purge::Hard);
    }
    let file = purges.encode_shared();
    assert_eq!(file.len(), PURGES_SIZE_MAX);
    assert_eq!(Purges::decode(&file, 1).unwrap().counts(), [PREFIXES_MAX, MARKS_MAX, MARKS_MAX]);
}

#[test]
fn purges_of_several_directories_are_united() {
    let one = Purges::new(1000);
    let two = Purges::new(2000);
    let old = one.sequence().next();
    one.purge_prefix(b"/a", Purge::Hard);
    one.purge_tag(Tag::of(b"red"), Purge::Soft);
    two.purge_key(Key::of(b"/b"), Purge::Hard);
    let last = two.purge_prefix(b"/c", Purge::Hard);
    let both = Purges::new(500);
    for file in [one.encode_shared(), two.encode_shared()] {
        both.absorb(&file).unwrap();
    }
    for (text, expected) in
        [("/a/1", Some(Purge::Hard)), ("/b", Some(Purge::Hard)), ("/c", Some(Purge::Hard)), ("/d", None)]
    {
        assert_eq!(verdict(&both, old, text), expected, "{text}");
    }
    let tags = [Tag::of(b"red")];
    assert_eq!(both.verdict(old, &subject("/d", &tags)), Verdict::Purged(Purge::Soft));
    // Younger than all of them, although its clock is behind.
    assert!(both.sequence().next() > last);
    assert_eq!(verdict(&both, both.sequence().next(), "/c"), None);
    // The same once more changes nothing.
    both.absorb(&one.encode_shared()).unwrap();
    assert_eq!(both.counts(), [2, 1, 1]);
}

#[test]
fn forgotten_purges_are_told_to_directories_that_were_missing() {
    let purges = Purges::new(1000);
    let before = purges.encode_shared();
    let purged = purges.purge_prefix(b"/a", Purge::Hard);
    purges.forget(purged);
    assert_eq!(purges.counts(), [0, 0, 0]);
    let known_purges = Purges::new(2000);
    let missing = Purges::new(2000);
    let facts = known_purges.absorb(&purges.encode_shared()).unwrap();
    assert!(facts.dropped >= purged && facts.dropped <= facts.last, "{facts:?}");
    assert_eq!(known_purges.dropped(), facts.dropped);
    // The file that was written before the purge does not contain it.
    assert!(missing.absorb(&before).unwrap().last < facts.dropped);
    // Entries of this directory were kept, whatever was forgotten before.
    assert_eq!(verdict(&known_purges, purged - 1, "/b"), None);
    // The file of a cache with one directory does not have what was forgotten.
    let facts = missing.absorb(&purges.encode()).unwrap();
    assert_eq!(facts.dropped, facts.last);
    let decoded = Purges::decode(&purges.encode_shared(), 3000).unwrap();
    assert!(decoded.sequence().next() > purged);
}
