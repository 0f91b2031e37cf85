use super::*;

fn key(number: u32) -> Key {
    Key::of(&number.to_le_bytes())
}

fn excess(table: &mut QuotaTable) -> Vec<Key> {
    std::iter::from_fn(|| table.next_excess()).collect()
}

#[test]
fn oldest_responses_of_an_owner_above_its_quota_go_first() {
    let mut table = QuotaTable::default();
    let a = QuotaOwner::of(b"a");
    let b = QuotaOwner::of(b"b");
    for number in 0..10 {
        table.add(key(number), 4096, a, 5 * 4096);
        table.add(key(100 + number), 4096, b, 1 << 20);
    }
    assert_eq!((table.used(a), table.counts().above), (10 * 4096, 1));
    // A response that is stored again is the newest one.
    table.add(key(0), 4096, a, 5 * 4096);
    assert_eq!(excess(&mut table), [1, 2, 3, 4, 5].map(key));
    assert_eq!((table.used(a), table.used(b)), (5 * 4096, 10 * 4096));
    // A smaller quota counts at once.
    assert!(table.confirm(key(0), a, 2 * 4096) && !table.confirm(key(1), a, 2 * 4096));
    assert_eq!(excess(&mut table), [6, 7, 8].map(key));
    table.forget(key(9));
    table.forget(key(0));
    assert_eq!((table.used(a), table.counts().owners, table.counts().responses), (0, 1, 10));
    // A response larger than the quota of its owner goes at once.
    table.add(key(1), 1 << 20, a, 4096);
    assert_eq!(excess(&mut table), [key(1)]);
    assert_eq!(table.counts().owners, 1);
}

#[test]
fn response_belongs_to_its_last_owner() {
    let mut table = QuotaTable::default();
    let a = QuotaOwner::of(b"a");
    let b = QuotaOwner::of(b"b");
    table.add(key(1), 1000, a, 1 << 20);
    table.add(key(1), 2000, b, 1 << 20);
    assert_eq!((table.used(a), table.used(b)), (0, 2048));
}

#[test]
fn responses_that_are_gone_are_forgotten() {
    let mut table = QuotaTable::default();
    let a = QuotaOwner::of(b"a");
    (0..1000).for_each(|number| table.add(key(number), 512, a, 1 << 30));
    let there: Vec<_> = (0..500).map(key).collect();
    let mut cursor = QuotaCursor::default();
    while let Some(counted) = table.next_counted(&mut cursor) {
        assert!(counted.len() <= CHECKED_PER_STEP);
        for response in counted {
            if response.key == key(999) {
                // The response is stored again meanwhile.
                table.add(response.key, 512, a, 1 << 30);
            }
            if !there.contains(&response.key) {
                table.forget_counted(response);
            }
        }
    }
    assert_eq!(table.used(a), 501 * 512);
}

#[test]
fn step_of_a_file_passes_a_limited_number_of_free_places() {
    let mut table = QuotaTable::default();
    let a = QuotaOwner::of(b"a");
    let last = 3 * ENCODED_PER_STEP as u32;
    (0..=last).for_each(|number| table.add(key(number), 512, a, 1 << 30));
    (0..last).for_each(|number| table.forget(key(number)));
    let mut cursor = QuotaCursor::default();
    for step in 1..=3 {
        assert_eq!(table.encode(&mut cursor), QuotaBlock::More);
        assert_eq!(cursor.0, step * ENCODED_PER_STEP);
    }
    let QuotaBlock::Block(block) = table.encode(&mut cursor) else { panic!() };
    assert_eq!(QuotaRow::decode(&block).unwrap().len(), 1);
    assert_eq!(table.encode(&mut cursor), QuotaBlock::Done);
}

#[test]
fn further_owners_share_a_quota() {
    let mut table = QuotaTable::default();
    let of = |number: u32| QuotaOwner::of(&number.to_le_bytes());
    for number in 0..OWNERS_MAX as u32 {
        table.add(key(number), 512, of(number), 1024);
    }
    assert!(!table.counts().is_full);
    for number in 0..4 {
        table.add(key(1_000_000 + number), 512, of(1_000_000 + number), 1024);
    }
    assert!(table.counts().is_full);
    assert_eq!(excess(&mut table), [key(1_000_000), key(1_000_001)]);
    // An owner without responses makes room.
    (0..3).for_each(|number| table.forget(key(number)));
    table.add(key(7_000_000), 512, of(7_000_000), 1024);
    assert_eq!(table.used(of(7_000_000)), 512);
    assert!(table.accounts.len() <= OWNERS_MAX + 1);
}

#[test]
fn file_has_owners_and_order() {
    let mut table = QuotaTable::default();
    let a = QuotaOwner::of(b"a");
    (0..300).for_each(|number| table.add(key(number), 512, a, 1 << 30));
    (0..100).for_each(|number| table.forget(key(number)));
    (0..50).for_each(|number| table.add(key(number), 512, a, 1 << 30));
    let mut cursor = QuotaCursor::default();
    let mut file = Vec::new();
    while let QuotaBlock::Block(block) = table.encode(&mut cursor) {
        assert_eq!(block.len(), BLOCK_SIZE);
        file.push(block);
    }
    assert_eq!(file.len(), 3);
    let rows: Vec<_> = file.iter().flat_map(|block| QuotaRow::decode(block).unwrap()).collect();
    assert_eq!(rows.len(), 250);
    for at in (0..BLOCK_SIZE).step_by(97) {
        let mut damaged = file[0].clone();
        damaged[at] ^= 4;
        assert_eq!(QuotaRow::decode(&damaged), None, "{at}");
    }
    assert_eq!(QuotaRow::decode(&file[0][..100]), None);
    let mut other = QuotaTable::default();
    // This response was stored before the file was read.
    other.add(key(200), 1024, a, 4 * 512);
    other.adopt(QuotaTable::restore(rows));
    assert_eq!(other.used(a), 251 * 512);
    let keys = excess(&mut other);
    assert_eq!((keys.len(), keys[0]), (247, key(100)));
    // The newest are left.
    assert!([48, 49, 200].iter().all(|number| !keys.contains(&key(*number))));
}

#[test]
fn random_changes_agree_with_a_plain_list() {
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut table = QuotaTable::default();
    let mut list = Vec::<(Key, u64, u64)>::new();
    for _ in 0..20_000 {
        let key = key(next(60) as u32);
        let owner = next(4);
        let size = 512 * (1 + next(8));
        let number = QuotaOwner::of(&owner.to_le_bytes());
        list.retain(|candidate| candidate.0 != key);
        if next(3) == 0 {
            table.forget(key);
            continue;
        }
        table.add(key, size, number, 40 * 512);
        list.push((key, owner, size));
        let used = |list: &[(Key, u64, u64)]| -> u64 {
            list.iter().filter(|candidate| candidate.1 == owner).map(|candidate| candidate.2).sum()
        };
        while used(&list) > 40 * 512 {
            let oldest = list.iter().position(|candidate| candidate.1 == owner).unwrap();
            assert_eq!(table.next_excess(), Some(list.remove(oldest).0));
        }
        assert_eq!(table.next_excess(), None);
        assert_eq!(table.used(number), used(&list));
    }
    assert_eq!(table.counts().responses, list.len() as u64);
    assert!(table.items.len() <= 61 && table.accounts.len() <= 5);
}
