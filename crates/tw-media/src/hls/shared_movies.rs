//! Movies whose segments a loop is sending. All responses with segments of one file share its description, so that many slow
//! clients take the memory of one.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync;

use tw_request::files::OpenFile;

use super::media_tracks::MediaTracks;

thread_local! {
    /// Files and their movies, for as long as a response has them.
    static MOVIES: RefCell<Vec<(Weak<OpenFile>, sync::Weak<MediaTracks>)>> = const { RefCell::new(Vec::new()) };
}

/// The movie of a file, if a response has it. A file that has changed is another open file.
pub(super) fn find(file: &Rc<OpenFile>) -> Option<sync::Arc<MediaTracks>> {
    let file = Rc::downgrade(file);
    MOVIES.with_borrow(|movies| {
        let mut all = movies.iter().filter(|(candidate, _)| candidate.ptr_eq(&file));
        all.find_map(|(_, movie)| movie.upgrade())
    })
}

/// Shares the movie of a file.
pub(super) fn share(file: &Rc<OpenFile>, movie: &sync::Arc<MediaTracks>) {
    MOVIES.with_borrow_mut(|movies| {
        movies.retain(|(_, movie)| movie.strong_count() > 0);
        movies.push((Rc::downgrade(file), sync::Arc::downgrade(movie)));
    });
}
