//! End of a batch: its results become an output file and an error file, one line for each request.

use std::sync::Arc;
use std::time::SystemTime;

use nsbridge_gateway_replies::{DiskStore, Kind, Unstored};
use nsbridge_protocol::Uuid;

use super::line::Outcome;
use super::validate::LineRequest;
use crate::archive::batch::{LineError, Status, Tokens};
use crate::archive::file::{File, Purpose};
use crate::archive::{Archive, Batch, BatchRecord, Draft, Lines};
use crate::ids;
use crate::state::App;

/// Files of a batch that has ended.
#[derive(Default)]
struct Files {
    output: Option<Draft>,
    errors: Option<Draft>,
    completed: u64,
    failed: u64,
    tokens: Tokens,
    /// True if the files would be larger than the tenant may have, and so were not written.
    full: bool,
}

/// Writes the files of a batch, and ends it.
pub(super) async fn finish(
    app: &Arc<App>,
    archive: &Arc<Archive>,
    batch: &Arc<Batch>,
) -> Result<(), Unstored> {
    let (id, record) = (batch.id, batch.record());
    let end = match (record.status, record.late) {
        (Status::Cancelling, _) => Status::Cancelled,
        (_, true) => Status::Expired,
        (_, false) => Status::Completed,
    };
    let lines = archive.lines(record.input, app.settings.max_body);
    // What a batch has cost is not lost because of a tenant's other files.
    let most = archive.room(&record.tenant).unwrap_or(0).max(archive.limits.max_file);
    let made = archive.with_store(move |store| assembled(store, id, &record, lines, end, most));
    let Files { output, errors, completed, failed, tokens, full } = made.await?;
    let drafts = [&output, &errors].map(|draft| draft.as_ref().map(|draft| draft.id));
    let files = [&output, &errors].into_iter().flatten();
    let files = files.map(|draft| (draft.id, draft.file.clone())).collect();
    let change = |record: &mut BatchRecord| {
        [record.output, record.error] = drafts;
        (record.completed, record.failed, record.tokens) = (completed, failed, tokens);
        record.total = completed + failed;
        if full {
            record.errors.push(LineError {
                code: "storage_full".to_owned(),
                line: None,
                message: archive.full().message().to_owned(),
                param: None,
            });
        }
        record.enter(if full { Status::Failed } else { end });
        true
    };
    archive.change(batch, files, change).await?;
    [output, errors].into_iter().flatten().for_each(Draft::keep);
    // Lines that were canceled have left replies.
    app.replies.forget_lines(&nsbridge_gateway_replies::Line::of(id));
    Ok(())
}

/// Writes the results in the order of the input's lines. Blocks.
fn assembled(
    store: &DiskStore,
    batch: Uuid,
    record: &BatchRecord,
    mut lines: Lines,
    end: Status,
    most: u64,
) -> Result<Files, Unstored> {
    let (mut files, mut bytes) = (Files::default(), 0);
    while let Some(line) = lines.next()? {
        let stored = store.read_part(Kind::Batch, batch, line.number)?;
        let mut outcome = stored.and_then(Outcome::of_stored).unwrap_or_else(|| {
            let request = LineRequest::parse(&line, record.endpoint).ok();
            let custom_id = request.as_ref().map(|request| request.custom_id.as_str());
            let (code, message) = unanswered(end);
            Outcome::unanswered(batch, line.number, custom_id, code, message)
        });
        outcome.text.push(b'\n');
        bytes += outcome.text.len() as u64;
        if bytes > most {
            return Ok(Files { full: true, ..Files::default() });
        }
        let draft = if outcome.is_ok {
            files.completed += 1;
            files.tokens.add(outcome.tokens());
            &mut files.output
        } else {
            files.failed += 1;
            &mut files.errors
        };
        let kind = if outcome.is_ok { "output" } else { "error" };
        let draft = match draft {
            Some(draft) => draft,
            None => draft.insert(Draft::begin(store, new_file(batch, record, kind), u64::MAX)?),
        };
        draft.push(&outcome.text)?;
    }
    for draft in [&mut files.output, &mut files.errors].into_iter().flatten() {
        draft.finish()?;
    }
    Ok(files)
}

/// Returns code and message of a line without an answer.
fn unanswered(end: Status) -> (&'static str, &'static str) {
    match end {
        Status::Cancelled => {
            ("batch_cancelled", "the batch was canceled before this request ended")
        }
        Status::Expired => {
            ("batch_expired", "the completion window was over before this request ended")
        }
        _ => ("server_error", "the request was not answered because of a failure of the gateway"),
    }
}

fn new_file(batch: Uuid, record: &BatchRecord, kind: &str) -> File {
    let created_at = ids::seconds(SystemTime::now());
    File {
        tenant: record.tenant.clone(),
        name: format!("{}_{kind}.jsonl", ids::batch(batch)),
        purpose: Purpose::BatchOutput,
        bytes: 0,
        chunks: 0,
        created_at,
        expires_at: Some(created_at.saturating_add(record.output_kept_s)),
        whole: false,
    }
}
