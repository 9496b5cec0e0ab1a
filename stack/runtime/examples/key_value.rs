//! Key-value store with one-sided GETs: clients read the table of the server by RDMA Read.
//!
//! ```text
//! key_value server memif:/tmp/fw.sock,server 198.18.0.1
//! key_value client memif:/tmp/fw.sock,client 198.18.0.2 198.18.0.1:4791
//! ```
//!
//! The server changes records while clients read them, and nothing orders the two: a Read may copy
//! some bytes before a change and others after it, in any order. So each record has a checksum, and
//! a reader that finds another one reads again. Version numbers at both ends of a record would not
//! do: nobody promises that they are copied first and last.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ferrowarp::{
    Access, Config, ConnParam, Context, DriveMode, EndReason, Mr, Qp, QpOptions, RemoteMr, Wc,
    WcStatus,
};

const USAGE: &str = "key_value server DEVICE ADDRESS | client DEVICE ADDRESS SERVER:PORT";
const PORT: u16 = 4791;
const TIMEOUT: Duration = Duration::from_secs(10);
/// The keys are the numbers below. A real store hashes its keys, and has them in the records.
const KEYS: usize = 16;
const GETS: usize = 10_000;
/// Bytes of a record: version, value, checksum. The version makes the checksums of equal values
/// different, or a value that returns would hide a change.
const LEN: usize = 16_384;
const BODY: usize = LEN - 8;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, device, address, rest @ ..] = &args[..] else { bail!(USAGE) };
    // A helper thread executes the Reads of the clients: the server's own thread has no part.
    let config = Config::new(device.parse()?, address.parse()?, 24).drive(DriveMode::Helper);
    let context = Context::open(config)?;
    match (role.as_str(), rest) {
        ("server", []) => server(&context),
        ("client", [remote]) => client(&context, remote),
        _ => bail!(USAGE),
    }
}

fn server(context: &Context) -> Result<()> {
    let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
    let table = pd.register(context.allocate(KEYS * LEN)?, Access::REMOTE_READ)?;
    let mut record = [0; LEN];
    (0..KEYS).for_each(|key| put(&table, key, 0, &mut record));
    let qp = pd.create_qp(&QpOptions::new(&cq))?;
    let listener = context.listen(PORT, 1)?;
    println!("listening on port {PORT}");
    let request = listener.accept_timeout(Duration::MAX).context("the device is gone")?;
    let param = ConnParam::new().private_data(table.remote().to_bytes())?;
    request.accept(&qp, param)?;
    println!("connected to {}", qp.wait_established(TIMEOUT)?.peer);
    let mut changes = 0;
    // The only event after this one is the end.
    while qp.wait_event(Duration::from_millis(1)).is_none() {
        changes += 1;
        put(&table, changes % KEYS, changes, &mut record);
    }
    println!("{changes} changes; end: {}", end(&qp)?);
    Ok(())
}

/// Changes a record: prepared in `record`, so that it changes by one short copy.
fn put(table: &Mr, key: usize, version: usize, record: &mut [u8; LEN]) {
    record[..8].copy_from_slice(&version.to_le_bytes());
    let value = record[0];
    record[8..BODY].fill(value);
    let sum = checksum(&record[..BODY]);
    record[BODY..].copy_from_slice(&sum);
    table.write(key * LEN, record);
}

/// FNV-1a. It finds mixtures of two records, but no forgeries.
fn checksum(body: &[u8]) -> [u8; 8] {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    body.iter().fold(0xcbf2_9ce4_8422_2325, add).to_le_bytes()
}

fn client(context: &Context, remote: &str) -> Result<()> {
    let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
    let sink = pd.register(context.allocate(LEN)?, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpOptions::new(&cq))?;
    qp.connect(remote.parse()?, ConnParam::new())?;
    let info = qp.wait_established(TIMEOUT)?;
    let table = RemoteMr::from_bytes(&info.private_data).context("the server has no table")?;
    println!("connected to {}", info.peer);
    let target = sink.sge(0, u32::try_from(LEN)?);
    let (mut gets, mut again, mut record) = (0, 0, [0; LEN]);
    while gets < GETS {
        let place = table.at((gets % KEYS * LEN) as u64);
        qp.post().read(target, place).signaled().ring()?;
        match cq.wait(&mut [Wc::default()], TIMEOUT) {
            [wc] if wc.status == WcStatus::Success => sink.read(0, &mut record),
            [] => bail!("the server is silent"),
            _ => bail!("a GET failed: {}", end(&qp)?),
        }
        if record[BODY..] != checksum(&record[..BODY]) {
            again += 1;
        } else if record[8..BODY].iter().all(|byte| byte == &record[0]) {
            gets += 1;
        } else {
            bail!("a mixture of two values");
        }
    }
    qp.close()?;
    qp.wait_event(TIMEOUT).context("the server does not close")?;
    println!("{gets} GETs, {again} of them again; end: {}", end(&qp)?);
    Ok(())
}

/// Returns the reason why the connection has ended.
fn end(qp: &Qp) -> Result<EndReason> {
    qp.attrs().and_then(|attrs| attrs.end).context("the connection has not ended")
}
