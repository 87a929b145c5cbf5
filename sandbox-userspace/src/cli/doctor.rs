//! `sandbox doctor`: what this kernel can enforce, proved.
