//! What the same drafters do in llama.cpp.

use super::cells::{gain_cells, text, two};
use crate::peers::{Peer, PeerTau};
use crate::study::sheet::Sheet;

/// A row for every drafter and pool of prompts, all prompts last.
pub(super) fn peers(peers: &[Peer]) -> Sheet {
    let header = [
        "arm",
        "prompts of",
        "prompts",
        "tau, llama.cpp",
        "tau, draftbench",
        "over llama.cpp",
        "95 % interval",
        "same text",
    ];
    let title = "The same drafters in llama.cpp, greedy, one sequence";
    let mut sheet = Sheet::new("llama", title, &header);
    for peer in peers {
        let of_pool = |pool: &str, tau: &PeerTau| {
            vec![
                peer.method.clone(),
                pool.to_owned(),
                tau.prompts.to_string(),
                text(tau.llama_cpp, two),
                text(tau.draftbench, two),
            ]
        };
        for (pool, tau) in peer.tau.iter().filter(|(pool, _)| *pool != "all") {
            let mut row = of_pool(pool, tau);
            row.resize(header.len(), "-".into());
            sheet.rows.push(row);
        }
        if let Some(tau) = peer.tau.get("all") {
            let (same, of) = peer.same_text();
            let mut row = of_pool("all", tau);
            row.extend(gain_cells(peer.gain()));
            row.push(format!("{same} of {of}"));
            sheet.rows.push(row);
        }
    }
    sheet.notes = vec!["Here tau is tokens / (tokens - accepted) by both programs, the first token counted; `tests/peers/llama_accept.py` measured it. Same text: answers equal token by token, of those that both gave; where texts part, so do the drafts. Intervals resample prompts, paired.".into()];
    sheet
}
