// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.26;

/// Writes the roots of Merkle trees to the chain, as Ceramic's anchor contract does.
contract Anchors {
    event DidAnchor(address indexed service, bytes32 root);

    function anchorDagCbor(bytes32 root) external {
        emit DidAnchor(msg.sender, root);
    }
}
