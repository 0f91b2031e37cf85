//! Server of a simulation: a cache with its manager on a simulated disk.

use super::*;

/// One life of a server.
pub(super) struct Process {
    pub(super) disk: Disk,
    pub(super) cache: Arc<Cache>,
    pub(super) manager: CacheMaintenance,
    pub(super) hot: FatalCell<OpenEntries>,
    pub(super) now: u32,
}

/// A response on its way.
pub(super) struct Filling<'a> {
    pub(super) writer: StoreWriter<'a>,
    pub(super) body: Bytes,
    pub(super) at: u64,
}

pub(super) fn silent(_: tw_log::Level, _: std::fmt::Arguments<'_>) {}

/// Place of a cache; the time, in seconds since 1970, chooses how it evicts.
pub(super) fn cache_path(now: u32) -> CachePath {
    // Every other second by another one.
    let policy = if now.is_multiple_of(2) { EvictionPolicy::Lru } else { EvictionPolicy::S3Fifo };
    let steps = StepLimits { files: u64::MAX, sleep: Duration::ZERO, threshold: Duration::MAX };
    let store = STORE.get();
    CachePath {
        dir: c"/cache".to_owned(),
        levels: [1, 0, 0],
        keys_size: 1 << 20,
        inactive: Duration::from_secs(u32::MAX.into()),
        max_size: if DEVICE.get() { 4 * HOLDS } else { HOLDS },
        min_free: 0,
        manager: steps,
        loader: steps,
        of_nginx: NginxFiles::Left,
        policy,
        pool: None,
        snapshot: None,
        hedging: Hedging::OFF,
        store,
        direct: DIRECT.get(),
        device: DEVICE.get().then(|| CacheDevice::of_path(c"/device".to_owned())),
        slow: None,
        verify: true,
        members: Box::default(),
        fleet: None,
        share: crate::cache_path::WHOLE,
    }
}

impl Process {
    pub(super) async fn start(disk: Disk, now_ms: u64) -> Self {
        let now = (now_ms / 1000) as u32;
        let place = cache_path(now);
        let zone = Arc::new(CacheZone::new(&place));
        let write_back_size = 8 << 10;
        let name = Box::from(&b"one"[..]);
        let cache = Arc::new(Cache { name, place, zone, write_back_size, members: None, fleet: None });
        cache.load_index_since(now_ms, CacheUser::Manager, &disk, silent).await.unwrap();
        // No task reads a snapshot beside the requests, which read what they need of that of records.
        if cache.zone.record_snapshot.get().is_none() {
            cache.zone.set_restored();
        }
        let manager = CacheMaintenance { cache: cache.clone(), disk: disk.clone(), log: Box::new(silent) };
        Self { disk, cache, manager, hot: FatalCell::new(OpenEntries::new(6, 1 << 20)), now }
    }

    pub(super) fn zone_index(&self) -> &ZoneIndex {
        self.cache.zone.loaded().unwrap()
    }

    pub(super) async fn restore(&self) {
        self.manager.restore(self.zone_index()).await;
        self.cache.zone.set_restored();
    }

    pub(super) async fn load(&self) {
        let unfinished = RefCell::new(Vec::new());
        self.restore().await;
        self.manager.load(self.zone_index(), &unfinished).await;
        self.manager.remove_unseen(self.zone_index()).await;
        self.manager.remove_unfinished(self.zone_index(), &unfinished).await;
        assert!(self.cache.zone.is_loaded.load(Relaxed));
    }

    pub(super) async fn find(&self, page: usize) -> Option<(Rc<OpenEntry>, FoundState)> {
        let found_entry = self.search(page).await;
        for removed_entry in found_entry.removed_entries {
            let _ = self.cache.zone.store.remove(self.cache.context(&self.disk), removed_entry).await;
        }
        found_entry.entry
    }

    /// Searches for a page. Returns the entry, and the entries to be deleted.
    pub(super) async fn search(&self, page: usize) -> FoundEntry {
        let (key, text) = (key(page), text(page));
        let query = EntryQuery { cache: &self.cache, key, main: key, text: text.as_bytes(), since: 0 };
        let account = &Account::new(JobClass::Hit, JobSource::NONE);
        let search = EntrySearch {
            disk: &|| Some(&self.disk),
            hot: &self.hot,
            event_loop: None,
            account,
            log: &silent,
        };
        let mut found_entry = FoundEntry::default();
        search.find(&query, &mut found_entry).await;
        found_entry
    }

    /// Searches for a page and checks its content. Returns its version; `None` if it is not there, or cannot be read.
    pub(super) async fn get(&self, truth: &Truth, page: usize) -> Option<u64> {
        let (hard, soft) = (truth.hard[page].get(), truth.soft[page].get());
        let (entry, stood) = self.find(page).await?;
        let [version, validated] = ["ETag", "Validated"].map(|name| number(&entry.meta, name));
        let expected = body(page, version);
        let content = match &entry.body {
            Some(body) => body.to_vec(),
            None => self.read(&entry).await?,
        };
        assert!(content == expected, "page {page} of version {version} is not what was stored");
        assert!(version >= hard, "page {page} of version {version} was purged: {hard}");
        assert!(validated >= soft || stood.is_stale, "page {page} of version {version} is stale: {soft}");
        Some(version)
    }

    pub(super) async fn read(&self, entry: &OpenEntry) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        let mut account = Account::new(JobClass::Hit, JobSource::NONE);
        while (content.len() as u64) < entry.len {
            let (at, room) = (content.len() as u64, entry.len as usize - content.len());
            let at = entry.body_offset() + at;
            let piece = match entry.file.check() {
                Some(check) => {
                    let read =
                        check.read(&self.disk, &mut account, entry.file.file(), at, room).await.ok()?;
                    read.ok()?.to_vec()
                }
                None => self.disk.read(&mut account, entry.file.file(), at, vec![0; room]).await.ok()?,
            };
            if piece.is_empty() {
                break;
            }
            content.extend(piece);
        }
        Some(content)
    }

    pub(super) fn begin(&self, truth: &Truth, page: usize) -> Filling<'_> {
        let claim = self.zone_index().index.claim(key(page), self.now);
        let version = truth.next();
        let meta = meta(page, version, claim.sequence());
        let entry = NewEntry { meta: Box::new(meta), claim, copied: None };
        let writer = self.cache.zone.store.begin(self.cache.context(&self.disk), entry);
        Filling { writer, body: body(page, version), at: 0 }
    }

    /// Writes some more of it; `None` if that fails.
    pub(super) async fn write<'a>(&self, mut filling: Filling<'a>, len: usize) -> Option<Filling<'a>> {
        let end = (filling.at as usize + len).min(filling.body.len());
        let pieces = vec![filling.body.slice(filling.at as usize..end)];
        // Every other page is one that is asked for once.
        let needless = if filling.body.len().is_multiple_of(2) { filling.at } else { 0 };
        filling.writer.write(BodyPieces { pieces, needless }).await.ok()?;
        filling.at = end as u64;
        Some(filling)
    }

    pub(super) async fn store(&self, filling: Filling<'_>) {
        let Filling { writer, body, at } = filling;
        let pieces = vec![body.slice(at as usize..)];
        if let Ok(CommitOutcome::Stored(removed_entries)) =
            writer.commit(BodyPieces { pieces, needless: at }).await
        {
            self.remove_all(removed_entries).await;
        }
    }

    async fn remove_all(&self, removed_entries: Vec<RemovedEntry>) {
        for removed_entry in removed_entries {
            let _ = self.cache.zone.store.remove(self.cache.context(&self.disk), removed_entry).await;
        }
    }

    /// Updates an entry as a 304 does: with other fields, which sometimes have no room.
    pub(super) async fn refresh(&self, truth: &Truth, page: usize, room: usize) {
        let Some((entry, _)) = self.find(page).await else { return };
        let claim = self.zone_index().index.claim(key(page), self.now);
        let mut meta = entry.meta.clone();
        meta.fields.set("Validated", Bytes::from(truth.next().to_string()));
        meta.fields.set("X-Room", Bytes::from("x".repeat(room)));
        let was = ValidatedFile::of(&entry);
        if let Ok(removed_entries) = self
            .cache
            .zone
            .store
            .refresh(self.cache.context(&self.disk), Box::new(meta), was, claim, &silent)
            .await
        {
            self.remove_all(removed_entries).await;
        }
    }

    pub(super) async fn purge(&self, truth: &Truth, random: &mut Random) {
        let page = random.below(PAGES);
        let purge = if random.happens(60) { Purge::Hard } else { Purge::Soft };
        let next = truth.versions.get() + 1;
        let (zone_index, disk) = (self.zone_index(), &self.disk);
        let kind = random.below(4);
        let purged = match kind {
            0 => {
                let tags = [format!("tag{}", page % 3).into_bytes()];
                self.cache.purge_tags(zone_index, disk, &tags, purge).await.is_ok()
            }
            1 => self.cache.purge_prefix(zone_index, disk, b"/p/1", purge).await.is_ok(),
            _ => self.cache.purge_key(zone_index, disk, key(page), purge).await.is_ok(),
        };
        let is_meant = |other: usize| match kind {
            0 => other % 3 == page % 3,
            1 => other >= 10,
            _ => other == page,
        };
        for other in (0..PAGES).filter(|other| purged && is_meant(*other)) {
            let since = if purge == Purge::Hard { &truth.hard } else { &truth.soft };
            since[other].set(since[other].get().max(next));
        }
    }

    /// Something happens; `fillings` are what is on its way.
    pub(super) async fn step<'a>(
        &'a self,
        truth: &Truth,
        random: &mut Random,
        fillings: &RefCell<Vec<Filling<'a>>>,
    ) {
        let page = random.below(PAGES);
        let take = |random: &mut Random| {
            let mut fillings = fillings.borrow_mut();
            let nth = random.below(fillings.len());
            (!fillings.is_empty()).then(|| fillings.swap_remove(nth))
        };
        match random.below(100) {
            0..20 => {
                self.get(truth, page).await;
            }
            20..45 => {
                let filling = self.begin(truth, page);
                fillings.borrow_mut().push(filling);
            }
            45..55 => {
                if let Some(filling) = take(random) {
                    let len = random.below(30_000);
                    let written_filling = self.write(filling, len).await;
                    fillings.borrow_mut().extend(written_filling);
                }
            }
            55..75 => {
                if let Some(filling) = take(random) {
                    self.store(filling).await;
                }
            }
            75..78 => drop(take(random)),
            78..88 => {
                let room = random.below(300);
                self.refresh(truth, page, room).await;
            }
            88..93 => self.purge(truth, random).await,
            93..95 => {
                let _ = self.manager.write_snapshot(self.zone_index()).await;
            }
            95..98 => {
                self.manager.tend_segments().await;
                self.manager.make_room(self.zone_index(), &mut None).await;
            }
            _ if self.cache.zone.is_loaded.load(Relaxed) => {
                self.manager.sweep(self.zone_index()).await;
            }
            _ => {}
        }
    }

    /// Compares the records of a segment with their entries. Returns the number of entries and their bytes.
    pub(super) fn compare_segment(&self, number: u32, content: &[u8]) -> Result<[u64; 2], String> {
        let Ok(header) = SegmentHeader::decode(content, number) else { return Ok([0, 0]) };
        let after = |block: u32| content.get(block as usize * 4096..).unwrap_or_default();
        let in_table = header.table.and_then(|table| segment::decode_table(after(table.block), &table).ok());
        let rows = in_table.unwrap_or_else(|| {
            let (mut rows, file_size) = (Vec::new(), content.len() as u64);
            let window = ScanWindow { block: 1, bytes: after(1), file_size };
            segment::scan(&header, &window, &mut rows);
            rows
        });
        let mut sums = [0, 0];
        for row in rows {
            let address = row.address(number);
            let is_known = self.zone_index().index.peek(row.key).and_then(|index_entry| index_entry.address)
                == Some(address);
            let record = RecordPrefix::decode(after(row.block), &header, row.block);
            let is_stored = record.is_ok_and(|(prefix, state)| {
                let entry = after(row.block).get(64..64 + prefix.len as usize).unwrap_or_default();
                let meta = format::decode(&Bytes::copy_from_slice(entry), prefix.len);
                let is_whole = meta.is_ok_and(|meta| crate::store::segments::is_body_whole(&meta, entry));
                state == RecordState::Stored && is_whole
            });
            if is_stored && !is_known {
                return Err(format!("{address:?} has no entry"));
            }
            if is_known {
                sums = [sums[0] + 1, sums[1] + address.size()];
            }
        }
        Ok(sums)
    }

    /// Compares entries and files, which should be the same.
    pub(super) fn compare(&self, sim: &Sim) -> Result<(), String> {
        let index = &self.zone_index().index;
        let (mut files, mut bytes, mut segments) = (0, 0, 0);
        for path in sim.paths() {
            let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap();
            if [&b"purges"[..], b"snapshot", b"pages"].contains(&name)
                || [STRANGE, c"/cache/device"].contains(&&*path)
            {
                continue;
            }
            if *path == *c"/device" {
                for (number, content) in segments_of_device(sim) {
                    let [of_segment, size] = self.compare_segment(number, &content)?;
                    (files, bytes, segments) =
                        (files + of_segment, bytes + size, segments + content.len() as u64);
                }
                continue;
            }
            if let Some(number) = segment::number_of(name) {
                let content = sim.content(&path).unwrap_or_default();
                let [of_segment, size] = self.compare_segment(number, &content)?;
                (files, bytes, segments) =
                    (files + of_segment, bytes + size, segments + on_disk(content.len() as u64));
                continue;
            }
            let key = Key::from_hex(name).ok_or_else(|| format!("{path:?} stays"))?;
            let entry = index.peek(key).filter(|entry| entry.holds == EntryState::File);
            let entry = entry.filter(|entry| entry.address.is_none());
            let entry = entry.ok_or_else(|| format!("{path:?} has no entry"))?;
            let size = on_disk(sim.content(&path).map_or(0, |content| content.len() as u64));
            if entry.size != size {
                return Err(format!("{path:?} has {size} bytes, and not {}", entry.size));
            }
            (files, bytes) = (files + 1, bytes + size);
        }
        let known_value = self.cache.zone.store.bytes_of_segments();
        if known_value != segments {
            return Err(format!("segments have {segments} bytes, and not {known_value}"));
        }
        let counts = index.counts();
        match (counts.files, counts.bytes) == (files, bytes) {
            true => Ok(()),
            false => Err(format!("{counts:?}, and there are {files} files with {bytes} bytes")),
        }
    }
}
