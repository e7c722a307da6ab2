//! nft: see the module docs.
