// Prints what spymemcached's TapClient gets: one line for each message.
import java.net.InetSocketAddress;
import net.spy.memcached.TapClient;
import net.spy.memcached.tapmessage.RequestMessage;
import net.spy.memcached.tapmessage.ResponseMessage;
import net.spy.memcached.tapmessage.TapMagic;
import net.spy.memcached.tapmessage.TapOpcode;
import net.spy.memcached.tapmessage.TapRequestFlag;

public class TapDump {
  public static void main(String[] args) throws Exception {
    String host = args[1].substring(0, args[1].lastIndexOf(':'));
    int port = Integer.parseInt(args[1].substring(args[1].lastIndexOf(':') + 1));
    TapClient client = new TapClient(new InetSocketAddress(host, port));
    if (args[0].equals("dump")) {
      client.tapDump("java");
    } else {
      RequestMessage message = new RequestMessage();
      message.setFlags(TapRequestFlag.BACKFILL);
      message.setFlags(TapRequestFlag.SUPPORT_ACK);
      message.setFlags(TapRequestFlag.CHECKPOINT);
      message.setFlags(TapRequestFlag.FIX_BYTEORDER);
      message.setBackfill(-1);
      message.setMagic(TapMagic.PROTOCOL_BINARY_REQ);
      message.setOpcode(TapOpcode.REQUEST);
      message.setName("java");
      client.tapCustom("java", message);
      System.out.println("READY");
      System.out.flush();
    }
    while (client.hasMoreMessages()) {
      ResponseMessage m = client.getNextMessage();
      if (m == null) {
        continue;
      }
      String value = m.getValue() == null ? "" : new String(m.getValue(), "ISO-8859-1");
      String flags = Integer.toUnsignedString(m.getItemFlags());
      System.out.println(m.getOpcode() + " " + m.getKey() + " " + flags + " " + value);
      System.out.flush();
      if ("end".equals(m.getKey())) {
        break;
      }
    }
    client.shutdown();
    System.exit(0);
  }
}
