//! An object that is read, range by range.

use std::io::{self, IoSliceMut};

use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt};
use outlive_vault::Object;

use crate::client::{Client, wait};
use crate::error::io_error;

/// The object that was found: one that takes its place meanwhile is not mixed with it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    client: Client,
    path: Path,
    length: u64,
    tag: Option<String>,
}

impl Stored {
    pub fn find(client: &Client, path: &Path) -> io::Result<Stored> {
        let meta = wait(client.objects.head(path)).map_err(|error| io_error(&error))?;
        let ObjectMeta { size, e_tag, .. } = meta;
        Ok(Stored {
            client: client.clone(),
            path: path.clone(),
            length: size,
            tag: e_tag,
        })
    }
}

impl Object for Stored {
    fn length(&self) -> io::Result<u64> {
        Ok(self.length)
    }

    fn read_at(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let wanted: u64 = into.iter().map(|slice| slice.len() as u64).sum();
        let end = at.saturating_add(wanted).min(self.length);
        // A store refuses a range of nothing.
        if at >= end {
            return Ok(0);
        }
        let options = GetOptions {
            range: Some(GetRange::Bounded(at..end)),
            if_match: self.tag.clone(),
            ..GetOptions::default()
        };
        let got = wait(async {
            let found = self.client.objects.get_opts(&self.path, options).await?;
            found.bytes().await
        });
        let got = got.map_err(|error| io_error(&error))?;
        if got.len() as u64 != end - at {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} bytes came of {} that were asked for",
                    got.len(),
                    end - at
                ),
            ));
        }
        let mut rest = &got[..];
        for slice in into {
            let count = slice.len().min(rest.len());
            slice[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
        }
        Ok(got.len())
    }

    fn again(&self, _: bool) -> io::Result<Box<dyn Object>> {
        Ok(Box::new(self.clone()))
    }
}
