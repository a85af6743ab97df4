package logweir.spark;

/** Something that this reader leaves to the one in Python: its place is a block, or a row of one. */
final class Handed extends Exception {
    private static final long serialVersionUID = 1;
    final int row;

    /** `row`: of the batch that is being made. */
    Handed(int row) {
        super(null, null, false, false);
        this.row = row;
    }
}
