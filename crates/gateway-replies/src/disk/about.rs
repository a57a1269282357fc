//! Values about the database itself.

use nsbridge_client::RequestId;
use nsbridge_crypto::AtRest;
use nsbridge_protocol::Uuid;
use redb::{ReadableTable, TableDefinition, WriteTransaction};

use super::{Place, REPLIES, Record, database, open};

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

/// Name of the value that only the store's key opens.
const KEY: &str = "key";

/// Returns true if the database is sealed under this key. A new database is from now on.
pub(super) fn is_own(database: &database::Place, seal: &AtRest) -> Result<bool, redb::Error> {
    let transaction = database.begin_write()?;
    let is_own = {
        let mut about = transaction.open_table(ABOUT)?;
        let known = about.get(KEY)?.map(|sealed| sealed.value().to_vec());
        if let Some(sealed) = known {
            open::<String>(seal, Place::Key, &sealed).is_some()
        } else {
            // Earlier versions did not mark their databases.
            let replies = transaction.open_table(REPLIES)?;
            let mine = replies.first()?.is_none_or(|(id, sealed)| {
                let place = Place::Record(RequestId(Uuid::from_bytes(id.value())));
                open::<Record>(seal, place, sealed.value()).is_some()
            });
            let mark = serde_json::to_vec(KEY).unwrap_or_default();
            if let Some(sealed) = seal.seal(&Place::Key.bytes(), &mark).ok().filter(|_| mine) {
                about.insert(KEY, sealed.as_slice())?;
            }
            mine
        }
    };
    transaction.commit()?;
    Ok(is_own)
}

/// Writes as much as a request may need, to learn whether the disk has room again.
pub(super) fn probe(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    const PROBE: &str = "probe";
    let mut about = transaction.open_table(ABOUT)?;
    about.insert(PROBE, vec![0; 1 << 20].as_slice())?;
    about.remove(PROBE)?;
    Ok(())
}
