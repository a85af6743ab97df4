// Prints what spymemcached's TapClient gets: one line for each message.
import java.net.InetSocketAddress;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.TapClient;
import net.spy.memcached.tapmessage.ResponseMessage;

public class TapDump {
  public static void main(String[] args) throws Exception {
    String host = args[1].substring(0, args[1].lastIndexOf(':'));
    int port = Integer.parseInt(args[1].substring(args[1].lastIndexOf(':') + 1));
    TapClient client = new TapClient(new InetSocketAddress(host, port));
    if (args[0].equals("dump")) {
      client.tapDump("java");
    } else {
      client.tapBackfill("java", -1, 30, TimeUnit.SECONDS);
      System.out.println("READY");
      System.out.flush();
    }
    while (client.hasMoreMessages()) {
      ResponseMessage m = client.getNextMessage();
      if (m == null) {
        continue;
      }
      String value = m.getValue() == null ? "" : new String(m.getValue(), "ISO-8859-1");
      System.out.println(m.getOpcode() + " " + m.getKey() + " " + Integer.toUnsignedString(m.getItemFlags()) + " " + value);
      System.out.flush();
      if ("end".equals(m.getKey())) {
        break;
      }
    }
    client.shutdown();
    System.exit(0);
  }
}
